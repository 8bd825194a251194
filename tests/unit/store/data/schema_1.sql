-- A journal as it was when there was no migration after 1: thirty events, among them plans with decisions.
-- Written by that version and never touched again.
PRAGMA application_id = 0x42415455;
BEGIN TRANSACTION;
CREATE TABLE events (
    seq    INTEGER PRIMARY KEY,
    time_s REAL,
    job    TEXT,
    body   TEXT NOT NULL
);
INSERT INTO "events" VALUES(1,1.63518457005478161652e+01,NULL,'{"v":1,"type":"NodeAdded","time_s":16.351845700547816,"node":{"name":"n0","gpus":4,"gpu_type":"a","gpu_memory_mib":16384,"cpus_milli":0,"memory_mib":0,"rack":"","zone":"","nvlink":[],"numa":[],"labels":[],"taints":[]},"cause":"cluster"}');
INSERT INTO "events" VALUES(2,9.31134915027224678834e+01,NULL,'{"v":1,"type":"NodeAdded","time_s":93.11349150272247,"node":{"name":"n1","gpus":4,"gpu_type":"b","gpu_memory_mib":16384,"cpus_milli":16000,"memory_mib":4000,"rack":"","zone":"","nvlink":[],"numa":[],"labels":[["zone","\u00fc"]],"taints":[]},"cause":"cluster"}');
INSERT INTO "events" VALUES(3,9.31134915027224678834e+01,NULL,'{"v":1,"type":"NodeAdded","time_s":93.11349150272247,"node":{"name":"n2","gpus":8,"gpu_type":"a","gpu_memory_mib":16384,"cpus_milli":0,"memory_mib":0,"rack":"r1","zone":"","nvlink":[0,0,1,1,0,0,1,1],"numa":[0,0,0,0,1,1,1,1],"labels":[],"taints":[]},"cause":"cluster"}');
INSERT INTO "events" VALUES(4,1.49967031106632759924e+02,'j0','{"v":1,"type":"JobSubmitted","time_s":149.96703110663276,"job":{"id":"j0","submit_s":149.96703110663276,"size":40,"min":40,"max":40,"sizes":null,"gpus_per_replica":1,"sequence":0,"name":"","user":"","queue":"default","priority":0,"kind":"SCRIPT","application":"","gpu_types":[],"share":null,"topology":{"within":"ANY","required":false,"single_numa":false},"cpus_milli_per_gpu":0,"memory_mib_per_gpu":0,"node_labels":[],"tolerations":[],"curve":{"speeds":[0.0,1.0,1.8181818181818181,2.5,3.0769230769230766,3.571428571428571,4.0,4.375,4.705882352941176,5.0,5.2631578947368425,5.5,5.714285714285714,5.909090909090909,6.086956521739129,6.25,6.4,6.538461538461538,6.666666666666666,6.785714285714285,6.896551724137931,7.0,7.096774193548386,7.1875,7.2727272727272725,7.352941176470588,7.428571428571427,7.5,7.5675675675675675,7.63157894736842,7.692307692307692,7.75,7.804878048780487,7.857142857142856,7.906976744186047,7.954545454545454,8.0,8.043478260869565,8.085106382978722,8.125,8.16326530612245],"across_nodes":1.0,"across_racks":1.0},"work_s":3600.0,"restart_s":30.0,"checkpoint_interval_s":null},"cause":"submit"}');
INSERT INTO "events" VALUES(5,1.49967031106632759924e+02,'j1','{"v":1,"type":"JobSubmitted","time_s":149.96703110663276,"job":{"id":"j1","submit_s":149.96703110663276,"size":1,"min":1,"max":1,"sizes":null,"gpus_per_replica":1,"sequence":0,"name":"","user":"","queue":"default","priority":0,"kind":"SCRIPT","application":"","gpu_types":[],"share":null,"topology":{"within":"ANY","required":false,"single_numa":false},"cpus_milli_per_gpu":0,"memory_mib_per_gpu":0,"node_labels":[],"tolerations":[],"curve":{"speeds":[0.0,1.0],"across_nodes":1.0,"across_racks":1.0},"work_s":3600.0,"restart_s":30.0,"checkpoint_interval_s":null},"cause":"submit"}');
INSERT INTO "events" VALUES(6,1.49967031106632759924e+02,'j0','{"v":1,"type":"JobInterrupted","time_s":149.96703110663276,"job":"j0","cause":"backend"}');
INSERT INTO "events" VALUES(7,1.65545325289237467815e+02,NULL,'{"v":1,"type":"Planned","time_s":165.54532528923747,"plan":{"world_version":6,"time_s":165.54532528923747,"policy":"fifo","commands":[{"type":"Start","job":"j1","placement":[[["n1",[0]]]],"reason":"ADMITTED","evidence":[["gpus",1]]}],"retiered":[],"decisions":null},"cause":"decide"}');
INSERT INTO "events" VALUES(8,1.65545325289237467815e+02,'j1','{"v":1,"type":"JobStarted","time_s":165.54532528923747,"job":"j1","cause":"backend"}');
INSERT INTO "events" VALUES(9,1.65545325289237467815e+02,'j0','{"v":1,"type":"JobProgressed","time_s":165.54532528923747,"job":"j0","remaining_s":97430.57599473337,"curve":null,"restart_s":12.25,"cause":"progress"}');
INSERT INTO "events" VALUES(10,1.65545325289237467815e+02,NULL,'{"v":1,"type":"Planned","time_s":165.54532528923747,"plan":{"world_version":9,"time_s":165.54532528923747,"policy":"fifo","commands":[],"retiered":[],"decisions":null},"cause":"decide"}');
INSERT INTO "events" VALUES(11,1.65545325289237467815e+02,NULL,'{"v":1,"type":"Planned","time_s":165.54532528923747,"plan":{"world_version":10,"time_s":165.54532528923747,"policy":"fifo","commands":[],"retiered":[],"decisions":null},"cause":"decide"}');
INSERT INTO "events" VALUES(12,4.22515185750103341869e+02,'j2','{"v":1,"type":"JobSubmitted","time_s":422.51518575010334,"job":{"id":"j2","submit_s":422.51518575010334,"size":4,"min":2,"max":6,"sizes":null,"gpus_per_replica":2,"sequence":0,"name":"","user":"","queue":"default","priority":0,"kind":"TORCH_ELASTIC","application":"","gpu_types":[],"share":null,"topology":{"within":"ANY","required":false,"single_numa":false},"cpus_milli_per_gpu":0,"memory_mib_per_gpu":0,"node_labels":[],"tolerations":[],"curve":{"speeds":[0.0,1.0,2.0,3.0,4.0,5.0,6.0],"across_nodes":1.0,"across_racks":1.0},"work_s":3600.0,"restart_s":30.0,"checkpoint_interval_s":null},"cause":"submit"}');
INSERT INTO "events" VALUES(13,4.22515185750103341869e+02,NULL,'{"v":1,"type":"Planned","time_s":422.51518575010334,"plan":{"world_version":12,"time_s":422.51518575010334,"policy":"fifo","commands":[{"type":"Start","job":"j2","placement":[[["n1",[1,2]]]],"reason":"ADMITTED","evidence":[["gpus",2]]}],"retiered":[],"decisions":null},"cause":"decide"}');
INSERT INTO "events" VALUES(14,4.22515185750103341869e+02,'j2','{"v":1,"type":"JobStarted","time_s":422.51518575010334,"job":"j2","cause":"backend"}');
INSERT INTO "events" VALUES(15,8.14595567630998630172e+02,NULL,'{"v":1,"type":"Planned","time_s":814.5955676309986,"plan":{"world_version":14,"time_s":814.5955676309986,"policy":"fifo","commands":[],"retiered":[],"decisions":null},"cause":"decide"}');
INSERT INTO "events" VALUES(16,8.56459083935662647459e+02,NULL,'{"v":1,"type":"NodeReturned","time_s":856.4590839356626,"node":"n0","cause":"cluster"}');
INSERT INTO "events" VALUES(17,8.56459083935662647459e+02,NULL,'{"v":1,"type":"NodeUncordoned","time_s":856.4590839356626,"node":"n0","cause":"user"}');
INSERT INTO "events" VALUES(18,8.56459083935662647459e+02,NULL,'{"v":1,"type":"GpuRepaired","time_s":856.4590839356626,"node":"n0","gpu":0,"cause":"health"}');
INSERT INTO "events" VALUES(19,8.56459083935662647459e+02,NULL,'{"v":1,"type":"NodeReturned","time_s":856.4590839356626,"node":"n1","cause":"cluster"}');
INSERT INTO "events" VALUES(20,8.56459083935662647459e+02,NULL,'{"v":1,"type":"NodeUncordoned","time_s":856.4590839356626,"node":"n1","cause":"user"}');
INSERT INTO "events" VALUES(21,8.56459083935662647459e+02,NULL,'{"v":1,"type":"GpuRepaired","time_s":856.4590839356626,"node":"n1","gpu":0,"cause":"health"}');
INSERT INTO "events" VALUES(22,8.56459083935662647459e+02,NULL,'{"v":1,"type":"NodeReturned","time_s":856.4590839356626,"node":"n2","cause":"cluster"}');
INSERT INTO "events" VALUES(23,8.56459083935662647459e+02,NULL,'{"v":1,"type":"NodeUncordoned","time_s":856.4590839356626,"node":"n2","cause":"user"}');
INSERT INTO "events" VALUES(24,8.56459083935662647459e+02,NULL,'{"v":1,"type":"GpuRepaired","time_s":856.4590839356626,"node":"n2","gpu":0,"cause":"health"}');
INSERT INTO "events" VALUES(25,9.66786153115895558612e+02,'j1','{"v":1,"type":"JobProgressed","time_s":966.7861531158956,"job":"j1","remaining_s":340122.36219119554,"curve":null,"restart_s":12.25,"cause":"progress"}');
INSERT INTO "events" VALUES(26,9.66786153115895558612e+02,NULL,'{"v":1,"type":"Planned","time_s":966.7861531158956,"plan":{"world_version":25,"time_s":966.7861531158956,"policy":"fifo","commands":[],"retiered":[],"decisions":null},"cause":"decide"}');
INSERT INTO "events" VALUES(27,9.76613168305720250831e+02,'j2','{"v":1,"type":"JobEnded","time_s":976.6131683057203,"job":"j2","state":"SUCCEEDED","cause":"backend"}');
INSERT INTO "events" VALUES(28,1.09750903002654922603e+03,'j1','{"v":1,"type":"JobEnded","time_s":1097.5090300265492,"job":"j1","state":"FAILED_SETUP","cause":"backend"}');
INSERT INTO "events" VALUES(29,1.09750903002654922603e+03,NULL,'{"v":1,"type":"GpuFailed","time_s":1097.5090300265492,"node":"n0","gpu":0,"cause":"health"}');
INSERT INTO "events" VALUES(30,1.1221256570706298135e+03,'j0','{"v":1,"type":"JobEnded","time_s":1122.1256570706298,"job":"j0","state":"CANCELLED","cause":"backend"}');
CREATE TABLE plan_jobs (
    seq INTEGER NOT NULL,
    job TEXT NOT NULL,
    PRIMARY KEY (seq, job)
) WITHOUT ROWID;
INSERT INTO "plan_jobs" VALUES(7,'j1');
INSERT INTO "plan_jobs" VALUES(13,'j2');
CREATE TABLE plans (
    seq       INTEGER PRIMARY KEY,
    base      INTEGER NOT NULL,
    decisions BLOB NOT NULL
);
INSERT INTO "plans" VALUES(7,0,X'78015D8E410B82401085D77BFF2198930711B54E5D6D6F9DB2205896D874D3555B452D91EABF37AB8420737ADFCC7B6FD616216F88452D62D50DB0637EE06CB903F746CA496D50895B2B75871A1ED54BE91490B5B58C95281132A09790D27D740D0FE7E8448FE030D052262D387334E76852C83025F77093FB2646348D180C6490D64FE3F8281F03023C6720DA42260B5656FD82642ACD16A8507AE9F3DCA6EAE7027F2CF05CF3CA54F927583F13FE25963D0EB188BDFA01FF735455');
INSERT INTO "plans" VALUES(10,0,X'78015D8E410B82401085D77BFF2198930711B54E5D6D6F9DB2205896D874D3555B452D91EABF37AB8420737ADFCC7B6FD616216F88452D62D50DB0637EE06CB903F746CA496D50895B2B75871A1ED54BE91490B5B58C95281132A09790D27D740D0FE7E8448FE030D052262D387334E76852C83025F77093FB2646348D180C6490D64FE3F8281F03023C6720DA42260B5656FD82642ACD16A8507AE9F3DCA6EAE7027F2CF05CF3CA54F927583F13FE25963D0EB188BDFA01FF735455');
INSERT INTO "plans" VALUES(11,0,X'78015D8E410B82401085D77BFF2198930711B54E5D6D6F9DB2205896D874D3555B452D91EABF37AB8420737ADFCC7B6FD616216F88452D62D50DB0637EE06CB903F746CA496D50895B2B75871A1ED54BE91490B5B58C95281132A09790D27D740D0FE7E8448FE030D052262D387334E76852C83025F77093FB2646348D180C6490D64FE3F8281F03023C6720DA42260B5656FD82642ACD16A8507AE9F3DCA6EAE7027F2CF05CF3CA54F927583F13FE25963D0EB188BDFA01FF735455');
INSERT INTO "plans" VALUES(13,0,X'78015D8E410B8240148477233AF52B1E1D3C88A875EA6ADE3A6541B0486CBAE9AAA9A82552FDF7DE2615ECE5C17CC3CCBC0525E40111AF7924BB01D6CC71CD5568C2A51162540E2A7E6E45D9A1866B75976502C8DA5A4492170819F847CFF737C1C9DB1E82BDBF0393412944DC82F9AF0E430C4964D892D9E8648E3AAEEAE24DC307E53048EA9B8A3D25BA6C891906BCCD45ACB1A2EA3592CA24D5502E4B3D675B4DD5FF079CCF806DA97FC6C92F51CFFD48F8227462D0A9A1EE8C504A8CF91B272B5578');
INSERT INTO "plans" VALUES(15,0,X'78015D8E410B8240148477233AF52B1E1D3C88A875EA6ADE3A6541B0486CBAE9AAA9A82552FDF7DE2615ECE5C17CC3CCBC0525E40111AF7924BB01D6CC71CD5568C2A51162540E2A7E6E45D9A1866B75976502C8DA5A4492170819F847CFF737C1C9DB1E82BDBF0393412944DC82F9AF0E430C4964D892D9E8648E3AAEEAE24DC307E53048EA9B8A3D25BA6C891906BCCD45ACB1A2EA3592CA24D5502E4B3D675B4DD5FF079CCF806DA97FC6C92F51CFFD48F8227462D0A9A1EE8C504A8CF91B272B5578');
INSERT INTO "plans" VALUES(26,0,X'78015D8E410B8240148477233AF52B1E1D3C88A875EA6ADE3A6541B0486CBAE9AAA9A82552FDF7DE2615ECE5C17CC3CCBC0525E40111AF7924BB01D6CC71CD5568C2A51162540E2A7E6E45D9A1866B75976502C8DA5A4492170819F847CFF737C1C9DB1E82BDBF0393412944DC82F9AF0E430C4964D892D9E8648E3AAEEAE24DC307E53048EA9B8A3D25BA6C891906BCCD45ACB1A2EA3592CA24D5502E4B3D675B4DD5FF079CCF806DA97FC6C92F51CFFD48F8227462D0A9A1EE8C504A8CF91B272B5578');
CREATE TABLE schema_version (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_s REAL NOT NULL);
INSERT INTO "schema_version" VALUES(1,'journal',1700000000.0);
CREATE INDEX events_by_job ON events (job) WHERE job IS NOT NULL;
CREATE INDEX plan_jobs_by_job ON plan_jobs (job);
COMMIT;
