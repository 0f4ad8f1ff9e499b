//! Entity ids: `u32` newtypes that print as the text parser reads them (`t3`, `n0`).

/// Declares an id type with its text prefix.
macro_rules! entity_id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The text prefix of this kind of id.
            pub const PREFIX: &'static str = $prefix;

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

entity_id!(
    /// A value of an [`OperatorGraph`](crate::OperatorGraph).
    ValueId, "v"
);
entity_id!(
    /// A tensor of a [`PrimGraph`](crate::PrimGraph).
    TensorId, "t"
);
entity_id!(
    /// A node of a [`PrimGraph`](crate::PrimGraph).
    NodeId, "n"
);
