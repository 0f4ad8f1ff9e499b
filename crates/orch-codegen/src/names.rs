//! C identifiers for variables and buffers: the name people gave, made valid and unique within a function.

use rustc_hash::{FxHashMap, FxHashSet};

/// Words that C, its headers and the prelude use.
const RESERVED: &str = "auto break case char const continue default do double else enum extern float for goto if inline \
    int long register restrict return short signed sizeof static struct switch typedef union unsigned void volatile \
    while asm bool true false typeof buffers scratch task_begin task_end task_before exp log main linux unix NULL NAN INFINITY";

/// Letters that each name counts for in [`Names::length`].
const NAME_LETTERS: usize = 4;

/// Names in use.
#[derive(Default)]
pub struct Names {
    used: FxHashSet<String>,
    /// The last number given to each stem.
    numbers: FxHashMap<String, usize>,
}

impl Names {
    /// A new identifier that resembles `wish`.
    pub fn fresh(&mut self, wish: &str) -> String {
        let stem = sanitize(wish);
        if !is_reserved(&stem) && self.used.insert(stem.clone()) {
            return stem;
        }
        self.with_number(&format!("{stem}_"), 2)
    }

    /// A new identifier `stem` + number, counted from 0.
    pub fn numbered(&mut self, stem: &str) -> String {
        self.with_number(stem, 0)
    }

    /// The length of a text in which every name in use has four letters: it does not depend on what programs call things.
    pub fn length(&self, text: &str) -> usize {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let words = text.split(|c| !is_word(c));
        let names = words.filter(|word| self.used.contains(*word));
        names.fold(text.len(), |length, name| length + NAME_LETTERS - name.len())
    }

    fn with_number(&mut self, stem: &str, first: usize) -> String {
        let number = self.numbers.entry(stem.to_owned()).or_insert(first);
        loop {
            let name = format!("{stem}{number}");
            *number += 1;
            if self.used.insert(name.clone()) {
                return name;
            }
        }
    }
}

fn is_reserved(name: &str) -> bool {
    RESERVED.split_whitespace().any(|word| word == name)
}

/// Letters, digits and underscores; starts with a letter and with nothing that the prelude defines.
fn sanitize(wish: &str) -> String {
    let mut name: String =
        wish.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect();
    let taken = name.starts_with("orc_") || name.starts_with('_') || is_vector_type(&name);
    if taken || !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        name.insert_str(0, "v_");
    }
    name
}

/// True for names like `f32x16`, which are types.
fn is_vector_type(name: &str) -> bool {
    let digits = |s: &str| !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
    let body = name.trim_start_matches("bf").trim_start_matches(['f', 'i', 'u']);
    body.split_once('x').is_some_and(|(bits, lanes)| digits(bits) && digits(lanes.trim_end_matches("_mem")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_do_not_depend_on_the_spelling_of_names() {
        let mut names = Names::default();
        let (short, long) = (names.fresh("i"), names.fresh("outermost_index"));
        assert_eq!(names.length(&format!("f({short})")), names.length(&format!("f({long})")));
        assert_eq!(names.length(&format!("f({short})")), "f(abcd)".len());
        assert_eq!(names.length("outer_i * 16"), "outer_i * 16".len());
    }

    #[test]
    fn names_are_valid_and_unique() {
        let mut names = Names::default();
        assert_eq!(names.fresh("row"), "row");
        assert_eq!(names.fresh("row"), "row_2");
        assert_eq!(names.fresh("for"), "for_2");
        assert_eq!(names.fresh("conv1/weight:0"), "conv1_weight_0");
        assert_eq!(names.fresh("0"), "v_0");
        assert_eq!(names.fresh(""), "v_");
        assert_eq!(names.fresh("f32x16"), "v_f32x16");
        assert_eq!(names.fresh("box"), "box");
        assert_eq!(names.fresh("t1"), "t1");
        assert_eq!([names.numbered("t"), names.numbered("t")], ["t0", "t2"]);
    }
}
