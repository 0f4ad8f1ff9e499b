//! Typed, hash-consed scalar and vector expressions: the one expression language of block programs (which read
//! tensors at index tuples) and thread programs (which load from buffers at element offsets).
//!
//! Structurally equal expressions have equal ids, so common subexpressions are shared by construction. Index
//! arithmetic is `i64`; floor division and floor remainder (which index math means) are nodes apart from the
//! truncating [`BinaryFn::Div`] of the primitives. Smart constructors fold constants and drop identities;
//! [`simplify`](mod@crate::simplify) does what needs ranges.

mod build;
pub mod evaluate;
pub mod fold;
pub mod scalar;
pub mod substitute;
pub mod text;
pub mod walk;

use orch_ir::{BinaryFn, CompareFn, DType, ReduceOp, UnaryFn};
use rustc_hash::FxHashMap;

/// Declares an id type with its text prefix.
macro_rules! tile_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The id of the `index`-th entity of a table.
            pub fn new(index: usize) -> Self {
                Self(u32::try_from(index).expect("fewer than 2^32 entities"))
            }

            /// The position of the entity in its table.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}

tile_id!(
    /// An expression of an [`Exprs`] arena.
    ExprId, "e"
);
tile_id!(
    /// A variable: a loop index, a block-program axis, or a register.
    VarId, "x"
);
tile_id!(
    /// A tensor argument of a block program.
    ArgId, "a"
);
tile_id!(
    /// The result of a stage of a block program.
    StageId, "s"
);
tile_id!(
    /// A buffer of a thread program.
    BufferId, "b"
);

/// The type of an expression: `lanes` elements of `dtype`; 1 lane is a scalar.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Type {
    /// Element type.
    pub dtype: DType,
    /// Number of elements: 1, or the vector length.
    pub lanes: usize,
}

impl Type {
    /// The type of one element.
    pub const fn scalar(dtype: DType) -> Self {
        Self { dtype, lanes: 1 }
    }

    /// The type of `lanes` elements.
    pub const fn vector(dtype: DType, lanes: usize) -> Self {
        Self { dtype, lanes }
    }

    /// The type of index arithmetic.
    pub const INDEX: Type = Type::scalar(DType::I64);
}

/// A constant: the value's bits, zero-extended (floats of every width as their own bit pattern).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Const {
    /// Element type.
    pub dtype: DType,
    /// The bits of the value.
    pub bits: u64,
}

/// Half of the lanes of a vector.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LaneHalf {
    /// Those from 0 on.
    Low,
    /// Those from the middle on.
    High,
}

impl LaneHalf {
    /// Both, in order.
    pub const BOTH: [Self; 2] = [Self::Low, Self::High];

    /// `low` or `high`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::High => "high",
        }
    }

    /// The half with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::BOTH.into_iter().find(|half| half.name() == name)
    }

    /// Its lanes among so many.
    pub fn lanes(self, all: usize) -> std::ops::Range<usize> {
        match self {
            Self::Low => 0..all / 2,
            Self::High => all / 2..all,
        }
    }
}

/// What [`Expr::Interleave`] moves as one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LaneGroup {
    /// A lane.
    One,
    /// Two neighbouring lanes: a pair of bf16 as [`Expr::DotPairs`] takes it is moved whole.
    Pair,
}

impl LaneGroup {
    /// Both.
    pub const BOTH: [Self; 2] = [Self::One, Self::Pair];

    /// How many lanes it has.
    pub fn lanes(self) -> usize {
        match self {
            Self::One => 1,
            Self::Pair => 2,
        }
    }

    /// What interleaving such groups is called.
    pub fn interleave_name(self) -> &'static str {
        match self {
            Self::One => "interleave",
            Self::Pair => "interleave_pairs",
        }
    }

    /// The group whose interleaving has this name.
    pub fn of_interleave_name(name: &str) -> Option<Self> {
        Self::BOTH.into_iter().find(|group| group.interleave_name() == name)
    }

    /// The operand, 0 or 1, and the lane there that are lane `lane` of interleaved vectors.
    pub fn source_of(self, lane: usize) -> (usize, usize) {
        let (group, within) = (lane / self.lanes(), lane % self.lanes());
        (group % 2, group / 2 * self.lanes() + within)
    }
}

/// One expression node. Operands of elementwise nodes have equal lanes; [`Expr::Splat`] widens explicitly.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Expr {
    /// A scalar constant.
    Const(Const),
    /// A variable.
    Var(VarId),
    /// An elementwise function of one operand.
    Unary(UnaryFn, ExprId),
    /// An elementwise function of two operands.
    Binary(BinaryFn, ExprId, ExprId),
    /// An elementwise comparison; the result's dtype is `Bool`.
    Compare(CompareFn, ExprId, ExprId),
    /// `condition ? if_true : if_false`, elementwise; both sides may be evaluated.
    Select(ExprId, ExprId, ExprId),
    /// Conversion as [`orch_ir::ScalarFn::Cast`].
    Cast(DType, ExprId),
    /// NaN test.
    IsNan(ExprId),
    /// Infinity test.
    IsInf(ExprId),
    /// `a * b + c` with one rounding.
    Fma(ExprId, ExprId, ExprId),
    /// `(a, b, c)`: products of pairs of bf16 added to f32. Lane `l` is `c[l] + a[2l] * b[2l] + a[2l + 1] * b[2l + 1]`
    /// in f32; `b` has twice the lanes of `c`, and `a` as many as `b`, or two that stand for every pair.
    ///
    /// The interpreter adds the even product first, each product and sum with one rounding. Hardware may take the odd
    /// one first and reads and writes subnormals as zeros.
    DotPairs(ExprId, ExprId, ExprId),
    /// Lanes of two vectors, or pairs of them, by turns: `a[0], b[0], a[1], b[1], ..`; `a[0], a[1], b[0], b[1], a[2], ..`.
    Interleave(LaneGroup, ExprId, ExprId),
    /// The lower or the upper half of a vector's lanes.
    Half(LaneHalf, ExprId),
    /// `floor(a / b)` of integers, `b > 0`.
    FloorDiv(ExprId, ExprId),
    /// `a - floor(a / b) * b` of integers, `b > 0`.
    FloorRem(ExprId, ExprId),
    /// Block level: the element of a tensor argument at an index tuple. Where `guard` is false nothing is read
    /// and the value is 0.
    Read {
        /// Which argument.
        arg: ArgId,
        /// One index per dimension.
        index: Vec<ExprId>,
        /// A boolean; `None` is always true.
        guard: Option<ExprId>,
    },
    /// Block level: the result of an earlier stage at the current point of that stage's domain axes.
    Stage(StageId),
    /// Thread level: elements of a buffer. A scalar `offset` (in elements) loads `lanes` consecutive ones; a
    /// vector `offset` gathers. Where `mask` (a boolean of the same lanes) is false nothing is accessed and
    /// the element is 0.
    Load {
        /// Which buffer.
        buffer: BufferId,
        /// Element offset.
        offset: ExprId,
        /// Lanes of the result.
        lanes: usize,
        /// Which lanes to access; `None` is all.
        mask: Option<ExprId>,
    },
    /// A scalar repeated in every lane.
    Splat(ExprId, usize),
    /// `base + stride * lane` for each lane, of an integer scalar.
    Ramp {
        /// Value in lane 0.
        base: ExprId,
        /// Difference between neighbouring lanes.
        stride: i64,
        /// Number of lanes.
        lanes: usize,
    },
    /// Combines the lanes of a vector into a scalar with an operation that is not an arg-reduction.
    ReduceLanes(ReduceOp, ExprId),
}

/// What is known of a variable.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VarInfo {
    /// Readable name; need not be unique.
    pub name: String,
    /// Type.
    pub ty: Type,
    /// Inclusive bounds, for integer scalars whose range is known.
    pub range: Option<(i64, i64)>,
    /// A constant that the value is a multiple of (1 if unknown): lets vectors prove alignment.
    pub multiple_of: i64,
}

/// An arena of expressions and variables.
#[derive(Clone, Default, Debug)]
pub struct Exprs {
    nodes: Vec<Expr>,
    types: Vec<Type>,
    ids: FxHashMap<Expr, ExprId>,
    vars: Vec<VarInfo>,
    /// Element types of tensor arguments, stages and buffers, told by the owning program.
    arg_dtypes: Vec<DType>,
    stage_dtypes: Vec<DType>,
    buffer_dtypes: Vec<DType>,
}

impl Exprs {
    /// An empty arena.
    pub fn new() -> Self {
        Self::default()
    }

    /// The node with this id.
    pub fn get(&self, id: ExprId) -> &Expr {
        &self.nodes[id.index()]
    }

    /// All expressions, whether a program uses them or not.
    pub fn nodes(&self) -> impl Iterator<Item = &Expr> {
        self.nodes.iter()
    }

    /// The type of an expression.
    pub fn ty(&self, id: ExprId) -> Type {
        self.types[id.index()]
    }

    /// The element type of an expression.
    pub fn dtype(&self, id: ExprId) -> DType {
        self.ty(id).dtype
    }

    /// The lanes of an expression.
    pub fn lanes(&self, id: ExprId) -> usize {
        self.ty(id).lanes
    }

    /// What is known of a variable.
    pub fn var_info(&self, var: VarId) -> &VarInfo {
        &self.vars[var.index()]
    }

    /// All variables; a [`VarId`] is a position here.
    pub fn vars(&self) -> &[VarInfo] {
        &self.vars
    }

    /// Declares a variable.
    pub fn declare(&mut self, info: VarInfo) -> VarId {
        let id = VarId::new(self.vars.len());
        self.vars.push(info);
        id
    }

    /// Declares an index variable with values `0..extent` (an extent of 0 leaves it unbounded).
    pub fn declare_index(&mut self, name: impl Into<String>, extent: usize) -> VarId {
        let range = (extent > 0).then(|| (0, extent as i64 - 1));
        self.declare(VarInfo { name: name.into(), ty: Type::INDEX, range, multiple_of: 1 })
    }

    /// Declares a register.
    pub fn declare_register(&mut self, name: impl Into<String>, ty: Type) -> VarId {
        self.declare(VarInfo { name: name.into(), ty, range: None, multiple_of: 1 })
    }

    /// Promises that a variable is always a multiple of `factor`.
    pub fn set_multiple_of(&mut self, var: VarId, factor: i64) {
        self.vars[var.index()].multiple_of = factor;
    }

    /// Registers a tensor argument's element type; ids count up from 0.
    pub fn declare_arg(&mut self, dtype: DType) -> ArgId {
        self.arg_dtypes.push(dtype);
        ArgId::new(self.arg_dtypes.len() - 1)
    }

    /// Registers a stage's element type; ids count up from 0.
    pub fn declare_stage(&mut self, dtype: DType) -> StageId {
        self.stage_dtypes.push(dtype);
        StageId::new(self.stage_dtypes.len() - 1)
    }

    /// Registers a buffer's element type; ids count up from 0.
    pub fn declare_buffer(&mut self, dtype: DType) -> BufferId {
        self.buffer_dtypes.push(dtype);
        BufferId::new(self.buffer_dtypes.len() - 1)
    }

    /// Adds a node as it is (hash-consed, not simplified).
    pub fn add(&mut self, node: Expr) -> ExprId {
        if let Some(&id) = self.ids.get(&node) {
            return id;
        }
        let ty = self.infer(&node);
        let id = ExprId::new(self.nodes.len());
        self.nodes.push(node.clone());
        self.types.push(ty);
        self.ids.insert(node, id);
        id
    }

    fn infer(&self, node: &Expr) -> Type {
        match node {
            Expr::Const(c) => Type::scalar(c.dtype),
            Expr::Var(var) => self.vars[var.index()].ty,
            Expr::Unary(_, a) => self.ty(*a),
            Expr::Binary(_, a, b) | Expr::FloorDiv(a, b) | Expr::FloorRem(a, b) => {
                assert_eq!(self.ty(*a), self.ty(*b), "operands of {node:?}");
                self.ty(*a)
            }
            Expr::Compare(_, a, b) => {
                assert_eq!(self.ty(*a), self.ty(*b), "operands of {node:?}");
                Type { dtype: DType::Bool, ..self.ty(*a) }
            }
            Expr::Select(condition, a, b) => {
                assert_eq!(self.ty(*a), self.ty(*b), "operands of {node:?}");
                assert_eq!(self.lanes(*condition), self.lanes(*a), "condition of {node:?}");
                self.ty(*a)
            }
            Expr::Cast(dtype, a) => Type { dtype: *dtype, ..self.ty(*a) },
            Expr::IsNan(a) | Expr::IsInf(a) => Type { dtype: DType::Bool, ..self.ty(*a) },
            Expr::Fma(a, b, c) => {
                assert!(self.ty(*a) == self.ty(*b) && self.ty(*a) == self.ty(*c), "operands of {node:?}");
                self.ty(*a)
            }
            Expr::DotPairs(a, b, c) => {
                let (pairs, sums) = (self.ty(*b), self.ty(*c));
                let is_pair = self.ty(*a) == pairs || self.ty(*a) == Type::vector(DType::BF16, 2);
                let are_pairs = pairs == Type::vector(DType::BF16, 2 * sums.lanes);
                assert!(is_pair && are_pairs && sums.dtype == DType::F32, "operands of {node:?}");
                sums
            }
            Expr::Interleave(group, a, b) => {
                let fits = self.ty(*a) == self.ty(*b) && self.lanes(*a).is_multiple_of(group.lanes());
                assert!(fits, "operands of {node:?}");
                Type { lanes: 2 * self.lanes(*a), ..self.ty(*a) }
            }
            Expr::Half(_, a) => {
                assert!(self.lanes(*a).is_multiple_of(2), "operand of {node:?}");
                Type { lanes: self.lanes(*a) / 2, ..self.ty(*a) }
            }
            Expr::Read { arg, .. } => Type::scalar(self.arg_dtypes[arg.index()]),
            Expr::Stage(stage) => Type::scalar(self.stage_dtypes[stage.index()]),
            Expr::Load { buffer, lanes, .. } => Type::vector(self.buffer_dtypes[buffer.index()], *lanes),
            Expr::Splat(a, lanes) => {
                assert_eq!(self.lanes(*a), 1, "splat of a vector");
                Type { lanes: *lanes, ..self.ty(*a) }
            }
            Expr::Ramp { base, lanes, .. } => Type { lanes: *lanes, ..self.ty(*base) },
            Expr::ReduceLanes(_, a) => Type::scalar(self.dtype(*a)),
        }
    }

    /// An index constant.
    pub fn index(&mut self, value: i64) -> ExprId {
        self.add(Expr::Const(Const { dtype: DType::I64, bits: value as u64 }))
    }

    /// A constant of any type, rounded from `f64` (use [`Exprs::index`] for wide integers).
    pub fn constant(&mut self, dtype: DType, value: f64) -> ExprId {
        self.add(Expr::Const(Const::converted(dtype, value)))
    }

    /// The expression that conversions convert.
    pub fn without_casts(&self, id: ExprId) -> ExprId {
        let mut inner = id;
        while let Expr::Cast(_, value) = self.get(inner) {
            inner = *value;
        }
        inner
    }

    /// The value of an integer or boolean constant.
    pub fn as_int(&self, id: ExprId) -> Option<i64> {
        match self.get(id) {
            Expr::Const(c) => match c.dtype {
                DType::Bool | DType::U8 | DType::U16 | DType::U32 | DType::U64 | DType::I64 => {
                    Some(c.bits as i64)
                }
                DType::I8 => Some(i64::from(c.bits as u8 as i8)),
                DType::I16 => Some(i64::from(c.bits as u16 as i16)),
                DType::I32 => Some(i64::from(c.bits as u32 as i32)),
                DType::F16 | DType::BF16 | DType::F32 | DType::F64 => None,
            },
            _ => None,
        }
    }

    /// A variable as an expression.
    pub fn var(&mut self, var: VarId) -> ExprId {
        self.add(Expr::Var(var))
    }
}
