//! A run in Chrome's trace event format, which Perfetto and `chrome://tracing` open.

use super::data::Report;
use crate::manifest::StepInfo;
use serde_json::{Value, json};

/// The timeline as a trace: a complete event for each step, one thread for each lane. Events say whether their times are measured.
pub fn trace(report: &Report) -> String {
    let mut events = vec![json!({
        "name": "process_name", "ph": "M", "pid": 0, "tid": 0,
        "args": { "name": format!("{} for {}", report.manifest.model.name, report.manifest.target) },
    })];
    let lanes = report.timeline.spans.iter().map(|span| span.lane + 1).max().unwrap_or(0);
    events.extend((0..lanes).map(|lane| {
        json!({
            "name": "thread_name", "ph": "M", "pid": 0, "tid": lane,
            "args": { "name": if lane == 0 { "steps".to_owned() } else { format!("overlapping steps {lane}") } },
        })
    }));
    let steps = report.manifest.steps.iter().zip(&report.timeline.spans).enumerate();
    events.extend(steps.map(|(number, (step, span))| {
        json!({
            "name": step.name, "cat": category(step), "ph": "X", "pid": 0, "tid": span.lane,
            "ts": span.start_us, "dur": span.duration_us,
            "args": {
                "step": number,
                "times": if span.is_measured { "measured alone" } else { "modelled" },
                "modelled_us": step.cost_us,
                "roofline_us": known(step.roofline_us),
                "flops": step.flops,
                "traffic_bytes": step.traffic_bytes,
                "operators": step.origins,
            },
        })
    }));
    json!({ "displayTimeUnit": "ns", "traceEvents": events }).to_string()
}

/// A figure that is 0 where it is not modelled.
fn known(figure: f64) -> Value {
    if figure > 0.0 { figure.into() } else { Value::Null }
}

fn category(step: &StepInfo) -> &'static str {
    if step.is_on_host() { "host" } else { "kernel" }
}
