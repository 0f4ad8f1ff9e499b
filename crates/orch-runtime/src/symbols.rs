//! Tables of functions that are looked up in a shared library, once.

use libloading::Library;
use std::ffi::CStr;

/// The name of a function that a library lacks.
pub struct MissingSymbol {
    pub(crate) symbol: &'static CStr,
}

/// One function of a library.
///
/// # Safety
/// `F` must be the type of the C function of this name, and the library must stay loaded as long as it is used.
pub(crate) unsafe fn look_up<F: Copy>(library: &Library, symbol: &'static CStr) -> Result<F, MissingSymbol> {
    // SAFETY: the caller's promise.
    let found = unsafe { library.get::<F>(symbol) };
    found.map(|function| *function).map_err(|_| MissingSymbol { symbol })
}

/// Declares a table of C functions, and how it is filled. `W functions of V struct T { ... }` makes the functions less visible
/// than the table.
macro_rules! symbol_table {
    ($(#[$doc:meta])* $visibility:vis struct $table:ident { $($functions:tt)* }) => {
        $crate::symbols::symbol_table! { $(#[$doc])* $visibility functions of $visibility struct $table { $($functions)* } }
    };
    (
        $(#[$doc:meta])*
        $inner:vis functions of $visibility:vis struct $table:ident {
            $($field:ident = $name:literal: fn($($arg:ty),* $(,)?) -> $result:ty;)*
        }
    ) => {
        $(#[$doc])*
        $visibility struct $table {
            $($inner $field: unsafe extern "C" fn($($arg),*) -> $result,)*
        }

        impl $table {
            /// Looks the functions up.
            ///
            /// # Safety
            /// The library must be the one whose C header these types are from, and stay loaded as long as the result
            /// is used.
            $inner unsafe fn new(
                library: &libloading::Library,
            ) -> Result<Self, $crate::symbols::MissingSymbol> {
                // SAFETY: the caller's promise.
                unsafe { Ok(Self { $($field: $crate::symbols::look_up(library, $name)?,)* }) }
            }
        }
    };
}
pub(crate) use symbol_table;
