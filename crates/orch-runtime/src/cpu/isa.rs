//! Instruction-set extensions that a compiler may use for any C text: what its predefined macros say it was allowed to, and whether
//! the machine has them.
//!
//! Extensions that no compiler uses unless a source calls for them (AES, AMX) are not here.

macro_rules! extensions {
    ($(#[$condition:meta] $detect:ident: $($macro_name:literal => $name:tt,)*)*) => {
        /// The macro that a compiler defines where it may use the extension, and the extension's name.
        const EXTENSIONS: &[(&str, &str)] = &[$($(($macro_name, $name),)*)*];

        /// True if this machine has the extension.
        fn is_here(name: &str) -> bool {
            match name {
                $($(#[$condition] $name => std::arch::$detect!($name),)*)*
                _ => false,
            }
        }
    };
}

extensions! {
    #[cfg(target_arch = "x86_64")]
    is_x86_feature_detected:
    "__SSE3__" => "sse3",
    "__SSSE3__" => "ssse3",
    "__SSE4_1__" => "sse4.1",
    "__SSE4_2__" => "sse4.2",
    "__POPCNT__" => "popcnt",
    "__LZCNT__" => "lzcnt",
    "__BMI__" => "bmi1",
    "__BMI2__" => "bmi2",
    "__MOVBE__" => "movbe",
    "__AVX__" => "avx",
    "__AVX2__" => "avx2",
    "__FMA__" => "fma",
    "__F16C__" => "f16c",
    "__GFNI__" => "gfni",
    "__AVXVNNI__" => "avxvnni",
    "__AVXIFMA__" => "avxifma",
    "__AVXNECONVERT__" => "avxneconvert",
    "__AVXVNNIINT8__" => "avxvnniint8",
    "__AVX512F__" => "avx512f",
    "__AVX512BW__" => "avx512bw",
    "__AVX512CD__" => "avx512cd",
    "__AVX512DQ__" => "avx512dq",
    "__AVX512VL__" => "avx512vl",
    "__AVX512IFMA__" => "avx512ifma",
    "__AVX512VBMI__" => "avx512vbmi",
    "__AVX512VBMI2__" => "avx512vbmi2",
    "__AVX512VNNI__" => "avx512vnni",
    "__AVX512BITALG__" => "avx512bitalg",
    "__AVX512VPOPCNTDQ__" => "avx512vpopcntdq",
    "__AVX512BF16__" => "avx512bf16",
    "__AVX512FP16__" => "avx512fp16",

    #[cfg(target_arch = "aarch64")]
    is_aarch64_feature_detected:
    "__ARM_NEON" => "neon",
    "__ARM_FEATURE_ATOMICS" => "lse",
    "__ARM_FEATURE_DOTPROD" => "dotprod",
    "__ARM_FEATURE_FP16_VECTOR_ARITHMETIC" => "fp16",
    "__ARM_FEATURE_BF16_VECTOR_ARITHMETIC" => "bf16",
    "__ARM_FEATURE_MATMUL_INT8" => "i8mm",
    "__ARM_FEATURE_SVE" => "sve",
    "__ARM_FEATURE_SVE2" => "sve2",
}

/// The extensions that a compiler may use, by the macros that it predefines: lines `#define NAME VALUE`.
pub(super) fn of_macros(macros: &str) -> Vec<String> {
    let defined: Vec<&str> = macros.lines().filter_map(|line| line.split_ascii_whitespace().nth(1)).collect();
    let may_be_used = EXTENSIONS.iter().filter(|(name, _)| defined.contains(name));
    may_be_used.map(|(_, name)| (*name).to_owned()).collect()
}

/// Those of the extensions that this machine does not have. One that is not known counts as missing.
pub fn missing_extensions(names: &[String]) -> Vec<&str> {
    names.iter().map(String::as_str).filter(|name| !is_here(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn macros_name_extensions_and_unknown_ones_are_missing() {
        let found = of_macros(
            "#define __AVX2__ 1\n#define __AVX512F__ 1\n#define UNRELATED\n\n#define __ARM_NEON 1\n",
        );
        assert_eq!(found, ["avx2", "avx512f", "neon"]);
        assert_eq!(missing_extensions(&["a64fx-only".to_owned()]), ["a64fx-only"]);
        if cfg!(target_arch = "x86_64") {
            assert_eq!(missing_extensions(&["neon".to_owned()]), ["neon"]);
        }
    }

    #[test]
    fn a_machine_has_what_its_own_compiler_uses() {
        let compiler = super::super::Compiler::find(&super::super::CompilerOptions::default()).unwrap();
        assert_eq!(missing_extensions(compiler.extensions()), Vec::<&str>::new());
    }
}
