//! Primitives as a name and attributes. The inverse is [`build`](super::build).

use super::attr::Attr;
use crate::{
    Contract, ConvSpec, Cumulative, OpaqueKind, PadMode, PrimOp, Recurrence, ReduceOp, RnnCell, Window,
};

/// A primitive's attributes in printing order.
pub type Described<'a> = Vec<(&'static str, Attr<'a>)>;

impl PrimOp {
    /// The name in text forms and reports: `add`, `reduce.sum`, `contract`, `routine.Det`.
    pub fn name(&self) -> String {
        match self {
            PrimOp::Map(function) => function.name(),
            PrimOp::Reduce { op, .. } => format!("reduce.{}", op.name()),
            PrimOp::Window { op, .. } => format!("window.{}", op.name()),
            PrimOp::Broadcast { .. } => "broadcast".to_owned(),
            PrimOp::Transpose { .. } => "transpose".to_owned(),
            PrimOp::Reshape { .. } => "reshape".to_owned(),
            PrimOp::Slice { .. } => "slice".to_owned(),
            PrimOp::Pad { mode, .. } => format!("pad.{}", mode.name()),
            PrimOp::Concat { .. } => "concat".to_owned(),
            PrimOp::Select { .. } => "pick".to_owned(),
            PrimOp::Contract(_) => "contract".to_owned(),
            PrimOp::Conv(_) => "conv".to_owned(),
            PrimOp::ConvTranspose { .. } => "conv_transpose".to_owned(),
            PrimOp::Take { .. } => "take".to_owned(),
            PrimOp::TakeAlong { .. } => "take_along".to_owned(),
            PrimOp::GatherNd { .. } => "gather_nd".to_owned(),
            PrimOp::ScatterAlong { .. } => "scatter_along".to_owned(),
            PrimOp::ScatterNd { .. } => "scatter_nd".to_owned(),
            PrimOp::Iota { .. } => "iota".to_owned(),
            PrimOp::Recurrence(recurrence) => format!("recurrence.{}", recurrence.cell.name()),
            PrimOp::Opaque(opaque) => opaque.kind.name(),
        }
    }
}

impl OpaqueKind {
    /// The name in text forms and reports.
    pub fn name(&self) -> String {
        match self {
            OpaqueKind::TopK { .. } => "top_k".to_owned(),
            OpaqueKind::Cumulative(_) => "cumulative".to_owned(),
            OpaqueKind::If { .. } => "if".to_owned(),
            OpaqueKind::Loop { .. } => "loop".to_owned(),
            OpaqueKind::Scan { .. } => "scan".to_owned(),
            OpaqueKind::Routine { name, .. } => format!("routine.{name}"),
        }
    }
}

impl PadMode {
    /// Every mode.
    pub const ALL: [PadMode; 4] = [PadMode::Constant, PadMode::Edge, PadMode::Reflect, PadMode::Wrap];

    /// The name in text forms.
    pub fn name(self) -> &'static str {
        match self {
            PadMode::Constant => "constant",
            PadMode::Edge => "edge",
            PadMode::Reflect => "reflect",
            PadMode::Wrap => "wrap",
        }
    }
}

/// The attributes of a primitive; what the result types state is left out.
pub fn attributes(op: &PrimOp) -> Described<'_> {
    match op {
        PrimOp::Map(_) | PrimOp::Reshape { .. } => vec![],
        PrimOp::Reduce { axes, .. } => vec![("axes", Attr::ints(axes))],
        PrimOp::Window { window, .. } => window_attributes(window),
        PrimOp::Broadcast { dims, .. } => vec![("dims", Attr::ints(dims))],
        PrimOp::Transpose { perm } => vec![("perm", Attr::ints(perm))],
        PrimOp::Slice { starts, steps, .. } => {
            let mut attrs = vec![("starts", Attr::ints(starts))];
            attrs.extend((steps.iter().any(|&step| step != 1)).then(|| ("steps", Attr::ints(steps))));
            attrs
        }
        PrimOp::Pad { low, high, .. } => vec![("low", Attr::ints(low)), ("high", Attr::ints(high))],
        PrimOp::Concat { axis } | PrimOp::Take { axis } | PrimOp::TakeAlong { axis } => {
            vec![axis_attribute(*axis)]
        }
        PrimOp::Iota { axis, .. } => vec![axis_attribute(*axis)],
        PrimOp::Select { positions } => {
            let along =
                |list: &Option<Vec<usize>>| list.as_ref().map_or(Attr::word("all"), |list| Attr::ints(list));
            vec![("positions", Attr::List(positions.iter().map(along).collect()))]
        }
        PrimOp::Contract(contract) => vec![("labels", Attr::Text(labels_text(contract)))],
        PrimOp::Conv(spec) => conv_attributes(spec),
        PrimOp::ConvTranspose { spec, output_padding, may_pad } => {
            let mut attrs = conv_attributes(spec);
            attrs.extend(unless_all(output_padding, 0, "output_padding"));
            attrs.extend(may_pad.then(|| flag_attribute("may_pad", true)));
            attrs
        }
        PrimOp::GatherNd { batch_dims } => vec![("batch_dims", Attr::int(batch_dims))],
        PrimOp::ScatterAlong { axis, combine } => {
            let mut attrs = vec![axis_attribute(*axis)];
            attrs.extend(combine_attribute(*combine));
            attrs
        }
        PrimOp::ScatterNd { combine } => combine_attribute(*combine).into_iter().collect(),
        PrimOp::Recurrence(recurrence) => recurrence_attributes(recurrence),
        PrimOp::Opaque(opaque) => opaque_attributes(&opaque.kind),
    }
}

fn axis_attribute<'a>(axis: usize) -> (&'static str, Attr<'a>) {
    ("axis", Attr::int(axis))
}

fn flag_attribute<'a>(name: &'static str, value: bool) -> (&'static str, Attr<'a>) {
    (name, Attr::word(value.to_string()))
}

fn combine_attribute<'a>(combine: Option<ReduceOp>) -> Option<(&'static str, Attr<'a>)> {
    combine.map(|op| ("combine", Attr::word(op.name())))
}

/// A list, unless all its entries are `default`.
fn unless_all<'a>(values: &[usize], default: usize, name: &'static str) -> Option<(&'static str, Attr<'a>)> {
    values.iter().any(|&value| value != default).then(|| (name, Attr::ints(values)))
}

fn window_attributes<'a>(window: &Window) -> Described<'a> {
    let mut attrs = vec![("kernel", Attr::ints(&window.kernel))];
    attrs.extend(unless_all(&window.strides, 1, "strides"));
    attrs.extend(unless_all(&window.dilations, 1, "dilations"));
    attrs.extend(unless_all(&window.low, 0, "low"));
    attrs.extend(unless_all(&window.high, 0, "high"));
    attrs
}

fn conv_attributes<'a>(spec: &ConvSpec) -> Described<'a> {
    let mut attrs = window_attributes(&spec.window);
    attrs.extend((spec.groups != 1).then(|| ("groups", Attr::int(spec.groups))));
    attrs
}

/// `bmk,bkn->bmn`: labels below 52 are letters `a..zA..Z`, others `<number>`.
fn labels_text(contract: &Contract) -> String {
    let side = |labels: &[u8]| labels.iter().map(|&label| label_text(label)).collect::<String>();
    format!("{},{}->{}", side(&contract.lhs), side(&contract.rhs), side(&contract.out))
}

fn label_text(label: u8) -> String {
    match label {
        0..26 => char::from(b'a' + label).to_string(),
        26..52 => char::from(b'A' + label - 26).to_string(),
        _ => format!("<{label}>"),
    }
}

fn opaque_attributes(kind: &OpaqueKind) -> Described<'_> {
    match kind {
        OpaqueKind::TopK { axis, k, largest, sorted } => vec![
            axis_attribute(*axis),
            ("k", Attr::int(k)),
            flag_attribute("largest", *largest),
            flag_attribute("sorted", *sorted),
        ],
        OpaqueKind::Cumulative(Cumulative { axis, op, exclusive, reverse }) => vec![
            axis_attribute(*axis),
            ("op", Attr::word(op.name())),
            flag_attribute("exclusive", *exclusive),
            flag_attribute("reverse", *reverse),
        ],
        OpaqueKind::If { then_graph, else_graph } => {
            vec![("then", Attr::graph(then_graph)), ("else", Attr::graph(else_graph))]
        }
        OpaqueKind::Loop { body, carried, trips } => {
            vec![("carried", Attr::int(carried)), ("trips", Attr::int(trips)), ("body", Attr::graph(body))]
        }
        OpaqueKind::Scan { body, spec } => vec![
            ("states", Attr::int(spec.states)),
            ("inputs", placements(&spec.inputs)),
            ("outputs", placements(&spec.outputs)),
            ("body", Attr::graph(body)),
        ],
        OpaqueKind::Routine { ints, floats, texts, .. } => {
            let mut attrs = Vec::new();
            attrs.extend((!ints.is_empty()).then(|| ("ints", Attr::ints(ints))));
            attrs.extend((!floats.is_empty()).then(|| ("floats", floats_attribute(floats))));
            attrs.extend((!texts.is_empty()).then(|| ("texts", Attr::texts(texts))));
            attrs
        }
    }
}

fn floats_attribute<'a>(values: &[f64]) -> Attr<'a> {
    Attr::List(values.iter().map(|&value| Attr::float(value)).collect())
}

/// `[[axis, forward], [axis, reverse]]`.
fn placements<'a>(placements: &[(usize, bool)]) -> Attr<'a> {
    let direction = |reverse: bool| Attr::word(if reverse { "reverse" } else { "forward" });
    let pair = |&(axis, reverse): &(usize, bool)| Attr::List(vec![Attr::int(axis), direction(reverse)]);
    Attr::List(placements.iter().map(pair).collect())
}

fn recurrence_attributes(recurrence: &Recurrence) -> Described<'_> {
    let words = |names: Vec<&str>| Attr::List(names.into_iter().map(Attr::word).collect());
    let activations = &recurrence.activations;
    let parameters = |values: Vec<f64>| floats_attribute(&values);
    let mut attrs = vec![
        ("directions", words(recurrence.directions.iter().map(|direction| direction.name()).collect())),
        ("activations", words(activations.iter().map(|activation| activation.function.name()).collect())),
        ("alphas", parameters(activations.iter().map(|activation| activation.alpha).collect())),
        ("betas", parameters(activations.iter().map(|activation| activation.beta).collect())),
    ];
    attrs.extend(recurrence.clip.map(|clip| ("clip", Attr::float(clip))));
    match recurrence.cell {
        RnnCell::Rnn => {}
        RnnCell::Gru { linear_before_reset } => {
            attrs.push(flag_attribute("linear_before_reset", linear_before_reset));
        }
        RnnCell::Lstm { input_forget } => attrs.push(flag_attribute("input_forget", input_forget)),
    }
    let operands: Vec<&str> = recurrence.operands.iter().map(|operand| operand.name()).collect();
    attrs.extend((!operands.is_empty()).then(|| ("operands", words(operands))));
    attrs
}
