"""Muri: milliseconds become seconds."""

from batuta.backends.sim.traces.reader import read_workload

HEADER = (
    "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
    "resource_time_0,resource_time_1,resource_time_2,priority\n"
)
ROWS = "1,8,201694000,100,dqn,128,4472936000,1,509,435,8,0.5,0\n0,1,1694000,100,vgg16,16,500,1,214,82,75,66,1\n"


def test_times_are_milliseconds_and_models_are_applications(write):
    first, second = read_workload(write("trace.csv", HEADER + ROWS)).jobs
    assert (first.job.id, first.job.application, first.work_s) == ("0", "vgg16", 0.5)
    assert (second.job.id, second.job.submit_s, second.job.size) == ("1", 200_000.0, 8)
    assert second.work_s == 8 * 4_472_936.0


def test_the_column_priority_is_left_out_and_a_note_says_so(write):
    workload = read_workload(write("trace.csv", HEADER + ROWS))
    assert {own.job.priority for own in workload.jobs} == {0}
    assert "priority" in workload.notes[0]


def test_the_published_traces_are_read(shared_data):
    for name, jobs in (("trace1", 1494), ("trace3", 992)):
        workload = read_workload(shared_data / "muri" / f"{name}.csv")
        assert (workload.format, len(workload.jobs)) == ("muri", jobs)
