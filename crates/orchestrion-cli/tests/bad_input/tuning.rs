//! How many schedules of a kernel are timed, and what is known of them afterwards.

use crate::devices::{self, COMPILE, TUNED};
use crate::support::Session;
use orch_ir::DType;
use orch_onnx::builder::{GraphBuilder, node};
use std::collections::BTreeSet;

/// A session whose model is a product, which has many schedules.
fn product_session(name: &'static str) -> Session {
    let session = devices::session(name);
    let product = GraphBuilder::new("product")
        .input("x", DType::F32, [64, 64])
        .input("y", DType::F32, [64, 64])
        .node(node("MatMul", ["x", "y"], ["z"]))
        .output("z");
    session.write("good.onnx", product.model(17).encode());
    session
}

/// What a call prints that succeeds.
fn succeed(session: &Session, call: &str) -> String {
    let output = session.command(call).output().unwrap();
    assert!(output.status.success(), "{call}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// The schedules with times that a compilation with this option leaves in an empty cache; all records are in the file
/// `records` then.
fn timed_schedules(session: &Session, option: &str) -> BTreeSet<String> {
    succeed(session, &format!("{TUNED} -q {option} --cache-dir empty"));
    succeed(session, "cache --cache-dir empty export records");
    std::fs::remove_dir_all(session.work().join("empty")).unwrap();
    let records = std::fs::read_to_string(session.work().join("records")).unwrap();
    records.lines().filter_map(|line| Some(schedule(line)?.to_owned())).collect()
}

/// The schedule of a record, if it is the time of a kernel under one.
fn schedule(record: &str) -> Option<&str> {
    let (_, rest) = record.split_once("\"time of a kernel, f32, ")?;
    let (schedule, value) = rest.split_once("\"},\"value\":")?;
    let time_us: f64 = value.strip_suffix('}')?.parse().ok()?;
    (time_us > 0.0).then_some(schedule)
}

#[test]
fn every_timed_schedule_is_exported() {
    let session = product_session("schedules");
    for (option, count) in
        [("--tune-schedules 1", 0), ("--tune-schedules 3", 3), ("", 8), ("--tune-schedules 12", 12)]
    {
        let schedules = timed_schedules(&session, option);
        assert_eq!(schedules.len(), count, "{option}: {schedules:?}");
    }
}

#[test]
fn as_many_schedules_are_looked_up_as_are_asked_for() {
    let session = product_session("records");
    let usual = timed_schedules(&session, "");
    let more = timed_schedules(&session, "--tune-schedules 12");
    let fast = more.difference(&usual).next().unwrap();
    let records = std::fs::read_to_string(session.work().join("records")).unwrap();
    let (start, rest) = records.split_once(fast.as_str()).unwrap();
    let (_, rest) = rest.split_once('\n').unwrap();
    session.write("records", format!("{start}{fast}\"}},\"value\":0.5}}\n{rest}"));
    for (option, is_taken) in [("", false), ("--tune-schedules 12", true)] {
        succeed(&session, &format!("{COMPILE} -q --records records {option}"));
        let plan = succeed(&session, "explain good.orc --all");
        assert_eq!(plan.contains(fast.as_str()), is_taken, "{option}: {fast}\n{plan}");
    }
}
