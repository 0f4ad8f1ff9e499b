//! The blocks of a function while it is written: their lines, and the names that are visible in them.
//!
//! Names get into text through this table alone: [`Scopes::variable`] and [`Scopes::known`] give what is visible, and
//! note in which block it is declared. The text of an expression is written between [`Scopes::begin`] and
//! [`Scopes::finish`] and so is kept with the innermost block among those that declare its names; [`Scopes::name`]
//! declares it there or further in. Invariant: a name is declared before it is used, in a block that encloses the use,
//! because a block takes its names with it when it is closed, and its lines follow those of the block around it.

use crate::facts::Changes;
use crate::names::Names;
use orch_compute::{ExprId, VarId};
use rustc_hash::FxHashMap;
use std::cell::Cell;
use std::fmt::Write;

/// The text of a value, in parentheses if it is composite, and its type in the language that is written.
#[derive(Clone, PartialEq, Debug)]
pub struct TypedText<T> {
    /// The text.
    pub text: String,
    /// The type.
    pub ty: T,
}

/// Open blocks, the outermost first.
pub struct Scopes<T> {
    blocks: Vec<Block<T>>,
    names: Names,
    /// Values of the current statement.
    values: FxHashMap<ExprId, ScopedValue<T>>,
    /// The innermost block that declares a name of the text that is being written.
    reach: Cell<usize>,
}

/// A value that is visible in the block of this depth and in those inside it.
struct ScopedValue<T> {
    value: TypedText<T>,
    depth: usize,
}

struct Block<T> {
    lines: String,
    variables: FxHashMap<VarId, TypedText<T>>,
    locals: FxHashMap<ExprId, Local<T>>,
    kind: BlockKind,
}

/// A named expression.
struct Local<T> {
    value: TypedText<T>,
    reads: Changes,
}

/// Whether a block runs whenever the block around it does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BlockKind {
    /// A function or a loop.
    Plain,
    /// One side of a condition: nothing moves out of it.
    Branch,
}

/// Where the name of an expression is declared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hoist {
    /// Before the current statement.
    Never,
    /// In the outermost block in which all names of its text are visible, but in no branch that is not the current one.
    Outermost,
}

/// How long the name of an expression stands for it.
pub enum Lifetime {
    /// For the current statement.
    Statement,
    /// Until one of these changes, at most to the end of its block.
    Until(Changes),
}

/// What the text around the one that is being written has reached.
#[must_use]
pub struct OuterReach(usize);

impl<T: Copy> Scopes<T> {
    /// The block of a function.
    pub fn new(names: Names) -> Self {
        let mut scopes =
            Self { blocks: Vec::new(), names, values: FxHashMap::default(), reach: Cell::new(0) };
        scopes.open(BlockKind::Plain);
        scopes
    }

    /// Opens a block in the current one.
    pub fn open(&mut self, kind: BlockKind) {
        let (variables, locals) = (FxHashMap::default(), FxHashMap::default());
        self.blocks.push(Block { lines: String::new(), variables, locals, kind });
        self.values.clear();
    }

    /// Closes the current block: its lines.
    pub fn close(&mut self) -> String {
        self.values.clear();
        self.blocks.pop().expect("as many blocks are closed as are opened").lines
    }

    /// Starts a statement, which does not use the unnamed values of others.
    pub fn start_statement(&mut self) {
        self.values.clear();
    }

    /// A new identifier that resembles `wish`.
    pub fn fresh(&mut self, wish: &str) -> String {
        self.names.fresh(wish)
    }

    /// The length of a text in which every name has the same number of letters.
    pub fn length(&self, text: &str) -> usize {
        self.names.length(text)
    }

    /// Makes a variable visible in the current block, which declares it.
    pub fn declare(&mut self, var: VarId, value: TypedText<T>) {
        self.current().variables.insert(var, value);
    }

    /// What a variable is called.
    ///
    /// # Panics
    /// If it is not visible; the validator reports that.
    pub fn variable(&self, var: VarId) -> TypedText<T> {
        let depth = self.depth_of(var);
        self.reached(depth, &self.blocks[depth].variables[&var])
    }

    /// The value of an expression that has a name, or a text for the current statement.
    pub fn known(&self, id: ExprId) -> Option<TypedText<T>> {
        if let Some(ScopedValue { value, depth }) = self.values.get(&id) {
            return Some(self.reached(*depth, value));
        }
        let (depth, local) = self.local(id)?;
        Some(self.reached(depth, &local.value))
    }

    /// True if [`known`](Self::known) gives a value.
    pub fn is_known(&self, id: ExprId) -> bool {
        self.values.contains_key(&id) || self.is_named(id)
    }

    /// True if an expression has a name beyond the current statement.
    pub fn is_named(&self, id: ExprId) -> bool {
        self.local(id).is_some()
    }

    /// Starts the text of an expression, maybe within that of another one.
    pub fn begin(&self) -> OuterReach {
        OuterReach(self.reach.replace(0))
    }

    /// Ends the text of an expression: its value for the current statement.
    pub fn finish(&mut self, id: ExprId, value: TypedText<T>, outer: OuterReach) {
        let depth = self.reach.replace(outer.0);
        self.values.insert(id, ScopedValue { value, depth });
    }

    /// Declares a constant for an expression that has a text, by the line that `declaration` makes of the value and the name.
    pub fn name(
        &mut self,
        id: ExprId,
        hoist: Hoist,
        lifetime: Lifetime,
        declaration: impl FnOnce(&TypedText<T>, &str) -> String,
    ) -> TypedText<T> {
        let ScopedValue { value, depth } = self.values.remove(&id).expect("the expression has a text");
        let depth = match hoist {
            Hoist::Never => self.blocks.len() - 1,
            Hoist::Outermost => depth.max(self.current_branch()),
        };
        let value = self.constant_at(depth, &value, declaration);
        if let Lifetime::Until(reads) = lifetime {
            self.blocks[depth].locals.insert(id, Local { value: value.clone(), reads });
        }
        let named = self.reached(depth, &value);
        self.values.insert(id, ScopedValue { value, depth });
        named
    }

    /// Declares a constant in the current block.
    pub fn constant(
        &mut self,
        value: &TypedText<T>,
        declaration: impl FnOnce(&TypedText<T>, &str) -> String,
    ) -> TypedText<T> {
        self.constant_at(self.blocks.len() - 1, value, declaration)
    }

    /// Lets a variable stand for the expression that it is bound to, unless that has a name.
    pub fn remember(&mut self, id: ExprId, var: VarId, reads: Changes) {
        if self.is_named(id) {
            return;
        }
        let depth = self.depth_of(var);
        let block = &mut self.blocks[depth];
        let value = block.variables[&var].clone();
        block.locals.insert(id, Local { value, reads });
    }

    /// Forgets what the changes make stale.
    pub fn forget(&mut self, changes: &Changes) {
        for block in &mut self.blocks {
            block.locals.retain(|_, local| !local.reads.intersects(changes));
        }
        self.values.clear();
    }

    /// Writes a line of the current block.
    pub fn line(&mut self, text: &str) {
        self.line_at(self.blocks.len() - 1, text);
    }

    /// Writes the lines of a block that was in the current one.
    pub fn lines(&mut self, lines: &str) {
        self.current().lines.push_str(lines);
    }

    fn current(&mut self) -> &mut Block<T> {
        self.blocks.last_mut().expect("the function's block is open")
    }

    /// The depth of the innermost branch, or 0.
    fn current_branch(&self) -> usize {
        self.blocks.iter().rposition(|block| block.kind == BlockKind::Branch).unwrap_or(0)
    }

    /// The depth of the block that declares a variable.
    fn depth_of(&self, var: VarId) -> usize {
        let depth = self.blocks.iter().rposition(|block| block.variables.contains_key(&var));
        depth.expect("variables are declared before use; the validator reports it")
    }

    fn local(&self, id: ExprId) -> Option<(usize, &Local<T>)> {
        let blocks = self.blocks.iter().enumerate().rev();
        blocks.filter_map(|(depth, block)| Some((depth, block.locals.get(&id)?))).next()
    }

    /// A value of the block of this depth, which the text that is being written uses.
    fn reached(&self, depth: usize, value: &TypedText<T>) -> TypedText<T> {
        self.reach.set(self.reach.get().max(depth));
        value.clone()
    }

    fn constant_at(
        &mut self,
        depth: usize,
        value: &TypedText<T>,
        declaration: impl FnOnce(&TypedText<T>, &str) -> String,
    ) -> TypedText<T> {
        let name = self.names.numbered("t");
        self.line_at(depth, &declaration(value, &name));
        TypedText { text: name, ty: value.ty }
    }

    fn line_at(&mut self, depth: usize, text: &str) {
        let indent = 4 * (depth + 1);
        writeln!(self.blocks[depth].lines, "{:indent$}{text}", "").expect("writes to a string");
    }
}
