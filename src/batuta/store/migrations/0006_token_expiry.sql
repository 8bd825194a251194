-- When a token ends; NULL: never. It stays in the table: a clock that jumped makes none disappear.
ALTER TABLE tokens ADD COLUMN expires REAL;
