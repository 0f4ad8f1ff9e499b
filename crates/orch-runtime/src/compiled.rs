//! What compilers of C write: looking for kernels in shared objects without loading them.

use object::{Object, ObjectSymbol};

/// Checks that a compiler wrote a shared object that defines these functions.
///
/// # Errors
/// A clause that says what it wrote instead.
pub(crate) fn check_symbols(bytes: &[u8], symbols: &[String]) -> Result<(), String> {
    let file = object::File::parse(bytes)
        .map_err(|error| format!("it reports success, but does not write a shared object ({error})"))?;
    let is_defined = |wanted: &str| {
        let mut all = file.dynamic_symbols().chain(file.symbols());
        // Some systems put an underscore before names of C.
        all.any(|symbol| {
            symbol.is_definition()
                && symbol.name().is_ok_and(|name| name == wanted || name.strip_prefix('_') == Some(wanted))
        })
    };
    match symbols.iter().find(|symbol| !is_defined(symbol)) {
        None => Ok(()),
        Some(symbol) => Err(format!("it reports success, but writes a file without the function `{symbol}`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::testing::compile_object;

    #[test]
    fn functions_are_found_and_garbage_is_not_taken_for_an_object() {
        let object = compile_object("int f(void) { return 1; } static int hidden = 2; int *p = &hidden;");
        let check = |bytes: &[u8], name: &str| check_symbols(bytes, &[name.to_owned()]);
        assert_eq!(check(&object, "f"), Ok(()));
        assert!(check(&object, "g").unwrap_err().contains("without the function `g`"));
        for garbage in [&b""[..], b"garbage", &object[..64], &object[..object.len() / 3]] {
            assert!(check(garbage, "f").is_err());
        }
    }
}
