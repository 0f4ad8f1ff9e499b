//! Name resolution while graphs are built.
//!
//! Two stacks. A *level* is an operator graph under construction: the main graph, and on it the subgraphs that are
//! being read. A *frame* is a set of names: one for each level, and one for each function call that is being
//! inlined into the innermost level. A name is looked up from its frame outwards, up to the first function frame,
//! because a function sees nothing of its caller; a value of an outer level becomes a capture of each level
//! between.
//!
//! Value names are unique within a level, so that captures, which go by name, are unambiguous.

use crate::proto::{AttributeProto, FunctionProto};
use orch_ir::{OperatorGraph, Value, ValueId};
use std::collections::{BTreeMap, BTreeSet};

/// The versions of operator sets by domain.
pub(crate) type Opsets = BTreeMap<String, i64>;

/// What a name stands for: a value, or nothing (an optional operand that a call left out).
pub(crate) type Binding = Option<ValueId>;

/// A set of names.
pub(crate) struct Frame<'m> {
    /// The names declared here, with values of this frame's level.
    pub(crate) names: BTreeMap<&'m str, Binding>,
    /// The frame around: that of the enclosing graph or, for a function, of the call.
    pub(crate) outer: Option<usize>,
    /// The versions of the operator sets.
    pub(crate) opsets: &'m Opsets,
    /// Set if this is the frame of a function call.
    pub(crate) call: Option<Call<'m>>,
    /// The position of this frame's level.
    level: usize,
}

/// A function call that is being inlined.
pub(crate) struct Call<'m> {
    /// The function.
    pub(crate) function: &'m FunctionProto,
    /// What precedes the names of its nodes and values: the call's name and a slash.
    pub(crate) prefix: String,
    /// The attributes it is called with.
    pub(crate) attributes: BTreeMap<&'m str, Written<'m>>,
}

/// An attribute's value with the frame that the names in it (in a subgraph) belong to.
#[derive(Clone, Copy)]
pub(crate) struct Written<'m> {
    /// The value.
    pub(crate) attribute: &'m AttributeProto,
    /// The position of the frame.
    pub(crate) frame: usize,
}

/// A graph under construction.
#[derive(Default)]
struct Level {
    graph: OperatorGraph,
    /// Value names in use, each with the number that the next name made from it gets.
    taken: BTreeMap<String, usize>,
    /// Values that a node, a subgraph or the graph's outputs read.
    read: BTreeSet<ValueId>,
    /// Values of the next outer level and what they are here.
    captured: BTreeMap<ValueId, ValueId>,
}

/// The stacks of levels and frames.
#[derive(Default)]
pub(crate) struct Scopes<'m> {
    levels: Vec<Level>,
    frames: Vec<Frame<'m>>,
}

impl<'m> Scopes<'m> {
    /// Begins a graph whose names see those of the frame `outer`.
    pub(crate) fn open_graph(&mut self, name: &str, outer: Option<usize>, opsets: &'m Opsets) {
        let graph =
            OperatorGraph { name: name.to_owned(), opsets: opsets.clone(), ..OperatorGraph::default() };
        self.levels.push(Level { graph, ..Level::default() });
        let level = self.levels.len() - 1;
        self.frames.push(Frame { names: BTreeMap::new(), outer, opsets, call: None, level });
    }

    /// Ends the innermost graph.
    pub(crate) fn close_graph(&mut self) -> OperatorGraph {
        self.frames.pop().expect("a graph's frame is open until the graph is closed");
        self.levels.pop().expect("a graph is closed once").graph
    }

    /// Begins a function call in the innermost frame.
    pub(crate) fn open_call(
        &mut self,
        call: Call<'m>,
        names: BTreeMap<&'m str, Binding>,
        opsets: &'m Opsets,
    ) {
        let (outer, level) = (Some(self.top()), self.levels.len() - 1);
        self.frames.push(Frame { names, outer, opsets, call: Some(call), level });
    }

    /// Ends the innermost function call.
    pub(crate) fn close_call(&mut self) {
        self.frames.pop();
    }

    /// The number of open frames: how deep graphs and calls nest.
    pub(crate) fn depth(&self) -> usize {
        self.frames.len()
    }

    /// The position of the innermost frame.
    pub(crate) fn top(&self) -> usize {
        self.frames.len() - 1
    }

    /// The innermost frame.
    pub(crate) fn frame(&mut self) -> &mut Frame<'m> {
        let top = self.top();
        &mut self.frames[top]
    }

    /// The innermost graph.
    pub(crate) fn graph(&mut self) -> &mut OperatorGraph {
        &mut self.level().graph
    }

    fn level(&mut self) -> &mut Level {
        self.levels.last_mut().expect("a graph is open while names are resolved")
    }

    /// The frames from the one at `start` outwards, function calls included.
    pub(crate) fn outwards(&self, start: usize) -> impl Iterator<Item = &Frame<'m>> {
        std::iter::successors(self.frames.get(start), |frame| self.frames.get(frame.outer?))
    }

    /// The operator sets that the frame at `position` imports.
    pub(crate) fn opsets(&self, position: usize) -> &'m Opsets {
        self.frames[position].opsets
    }

    /// The version of an operator set as the innermost frame sees it; what a function leaves out, its caller says.
    pub(crate) fn opset(&self, domain: &str) -> Option<i64> {
        self.outwards(self.top()).find_map(|frame| frame.opsets.get(domain)).copied()
    }

    /// What precedes names of the innermost frame: nothing outside of functions.
    pub(crate) fn prefix(&self) -> &str {
        let call = self.outwards(self.top()).find_map(|frame| frame.call.as_ref());
        call.map_or("", |call| call.prefix.as_str())
    }

    /// A new value of the innermost graph, under a name made from `value.name` if that is taken.
    pub(crate) fn add_value(&mut self, value: Value) -> ValueId {
        self.level().add_value(value)
    }

    /// The value that `name` stands for, seen from the innermost frame and as a value of the innermost graph; the
    /// outer `None` if nothing in sight has this name.
    pub(crate) fn lookup(&mut self, name: &str) -> Option<Binding> {
        let mut position = self.top();
        loop {
            let frame = &self.frames[position];
            if let Some(&binding) = frame.names.get(name) {
                let level = frame.level;
                return Some(binding.map(|id| self.bring_in(level, id)));
            }
            position = frame.outer.filter(|_| frame.call.is_none())?;
        }
    }

    /// Makes a value of `level` a value of the innermost graph, and notes that it is read.
    fn bring_in(&mut self, level: usize, id: ValueId) -> ValueId {
        let mut id = id;
        self.levels[level].read.insert(id);
        for inner in level + 1..self.levels.len() {
            let outside = self.levels[inner - 1].graph.value(id).clone();
            id = self.levels[inner].capture(id, outside);
            self.levels[inner].read.insert(id);
        }
        id
    }

    /// True if something reads a value of the innermost graph.
    pub(crate) fn is_read(&mut self, id: ValueId) -> bool {
        self.level().read.contains(&id)
    }
}

impl Level {
    fn add_value(&mut self, mut value: Value) -> ValueId {
        value.name = self.free_name(value.name);
        self.graph.add_value(value)
    }

    /// `base`, or `base_2`, `base_3`, ... if that is taken.
    fn free_name(&mut self, base: String) -> String {
        let mut name = base.clone();
        while self.taken.contains_key(&name) {
            let count = self.taken.entry(base.clone()).or_insert(1);
            *count += 1;
            name = format!("{base}_{count}");
        }
        self.taken.insert(name.clone(), 1);
        name
    }

    /// The value here for a value of the next outer level.
    fn capture(&mut self, id: ValueId, outside: Value) -> ValueId {
        if let Some(&here) = self.captured.get(&id) {
            return here;
        }
        let name = outside.name.clone();
        let here = self.add_value(outside);
        self.graph.captures.push((here, name));
        self.captured.insert(id, here);
        here
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> Value {
        Value { name: name.into(), ..Value::default() }
    }

    #[test]
    fn names_are_made_unique() {
        let opsets = Opsets::new();
        let mut scopes = Scopes::default();
        scopes.open_graph("main", None, &opsets);
        for name in ["a", "a_2", "a", "a"] {
            scopes.add_value(named(name));
        }
        let names: Vec<_> = scopes.close_graph().values.into_iter().map(|value| value.name).collect();
        assert_eq!(names, ["a", "a_2", "a_3", "a_4"]);
    }

    #[test]
    fn a_value_from_far_outside_is_captured_by_each_graph_between() {
        let opsets = Opsets::new();
        let mut scopes = Scopes::default();
        scopes.open_graph("main", None, &opsets);
        let x = scopes.add_value(named("x"));
        scopes.frame().names.insert("x", Some(x));
        scopes.open_graph("body", Some(scopes.top()), &opsets);
        scopes.open_graph("inner", Some(scopes.top()), &opsets);
        let here = scopes.lookup("x").flatten().unwrap();
        assert_eq!(scopes.lookup("x").flatten(), Some(here));
        assert_eq!(scopes.close_graph().captures, [(here, "x".to_owned())]);
        assert_eq!(scopes.close_graph().captures.len(), 1);
        assert!(scopes.is_read(x));
        assert!(scopes.lookup("y").is_none());
    }
}
