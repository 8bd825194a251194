"""TensorFlow's MultiWorkerMirroredStrategy that can be resized.

What makes it elastic:
1. TF_CONFIG is made at every start, from the nodes that the job has then;
2. the batch is that of all workers together; samples are chosen by seed and step;
3. worker 0 asks whether Batuta wants a checkpoint. The answer travels with the gradients, so that all save at
   the same step, as TensorFlow wants it: the chief into the real folder, the others into one of their own.
"""

import json
import os
import signal
import tempfile
from pathlib import Path

import tensorflow as tf

from batuta import sdk

NODES = os.environ.get("SKYPILOT_NODE_IPS", "127.0.0.1").split()
RANK = int(os.environ.get("SKYPILOT_NODE_RANK", "0"))
STEPS = int(os.environ.get("STEPS", "1000"))
GLOBAL_BATCH = 64
FOLDER = Path(os.environ.get("BATUTA_CHECKPOINT_DIR", "checkpoints")) / "tensorflow"


def describe_cluster() -> str:
    """TF_CONFIG. On one machine workers need different ports, and should not take the next job's."""
    first = int(os.environ.get("MASTER_PORT", "20000"))
    ports = [20_000 + (first + 1_009 * rank) % 12_000 for rank in range(len(NODES))]
    workers = [f"{ip}:{port}" for ip, port in zip(NODES, ports, strict=True)]
    return json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": RANK}})


def make_model() -> tf.keras.Model:
    """Your model here."""
    tf.keras.utils.set_random_seed(0)
    layers = [tf.keras.layers.Dense(64, activation="tanh"), tf.keras.layers.Dense(1)]
    return tf.keras.Sequential([tf.keras.Input((16,)), *layers])


def make_batch(step: int, part: int, parts: int) -> tuple[tf.Tensor, tf.Tensor]:
    """One part of the batch of a step. Your data here."""
    inputs = tf.random.stateless_normal((GLOBAL_BATCH, 16), seed=(0, step))[part::parts]
    return inputs, tf.tanh(tf.reduce_sum(inputs[:, :2], axis=1, keepdims=True))


def main() -> None:
    os.environ["TF_CONFIG"] = describe_cluster()
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    # All is saved when it comes. TensorFlow only notes it, and would be killed when the grace is over.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parts = strategy.num_replicas_in_sync
    with strategy.scope():
        model = make_model()
        optimizer = tf.keras.optimizers.Adam(1e-2)
        optimizer.build(model.trainable_variables)
        done = tf.Variable(0, dtype=tf.int64, trainable=False)

    def train_part(inputs, wanted, wish):
        """One replica's part of a step: the summed loss, and whether worker 0 wishes for a checkpoint."""
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum((model(inputs, training=True) - wanted) ** 2) / GLOBAL_BATCH
        # The optimizer adds up what the replicas have, and each loss is a part of the whole batch's.
        variables = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        return loss, wish

    @tf.function
    def train_step(inputs, wanted, wish):
        loss, wishes = strategy.run(train_part, args=(inputs, wanted, wish))
        total = strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=None)
        return total, strategy.reduce(tf.distribute.ReduceOp.SUM, wishes, axis=None)

    own = FOLDER if RANK == 0 else Path(tempfile.mkdtemp())
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
    manager = tf.train.CheckpointManager(checkpoint, str(own), max_to_keep=2)
    latest = tf.train.latest_checkpoint(str(FOLDER))
    if latest:
        checkpoint.restore(latest)
    print(f"{len(NODES)} workers, from step {done.numpy()} of {STEPS}", flush=True)

    def save(step: int) -> None:
        done.assign(step)
        path = manager.save(checkpoint_number=step)
        if RANK == 0:
            sdk.checkpointed(path, step=step)

    spread = strategy.experimental_distribute_values_from_function
    loss = tf.constant(float("nan"))
    for step in range(int(done.numpy()), STEPS):
        batch = [make_batch(step, part, parts) for part in range(parts)]
        inputs = spread(lambda replica, batch=batch: batch[replica.replica_id_in_sync_group][0])
        wanted = spread(lambda replica, batch=batch: batch[replica.replica_id_in_sync_group][1])
        wish = tf.constant(int(RANK == 0 and sdk.checkpoint_requested()))
        loss, wishes = train_step(inputs, wanted, spread(lambda _, wish=wish: wish))
        if RANK == 0:
            samples = (step + 1) * GLOBAL_BATCH
            sdk.report(step=step + 1, total_steps=STEPS, samples=samples, loss=float(loss))
        if int(wishes):
            save(step + 1)
    save(STEPS)
    if RANK == 0:
        sdk.result({"steps": STEPS, "loss": float(loss)})


if __name__ == "__main__":
    main()
