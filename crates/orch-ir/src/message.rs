//! Texts of a model in messages. A name, an equation or a list of a model may have megabytes, and control characters that a
//! terminal obeys; a model may have the same problem at hundreds of places.

use std::collections::BTreeMap;

/// The most bytes of a name.
pub const NAME_BYTES: usize = 200;

/// The most bytes of one sentence about one place.
pub const SENTENCE_BYTES: usize = 800;

/// The most bytes of all lines about one model.
const LIST_BYTES: usize = 3600;

/// The most lines about one model.
const LIST_LINES: usize = 18;

/// A name as messages show it: without its middle if it is long, control characters escaped.
pub fn name(text: &str) -> String {
    shortened(text, NAME_BYTES)
}

/// A sentence that quotes a model, without its middle if it is long, control characters escaped.
pub fn sentence(text: &str) -> String {
    shortened(text, SENTENCE_BYTES)
}

/// A text of at most `most_bytes`, its middle replaced by `…` if it is longer, control characters escaped.
pub fn shortened(text: &str, most_bytes: usize) -> String {
    const ELLIPSIS: &str = "…";
    let escaped = |part: &str| part.chars().map(escape).collect::<String>();
    if text.len() <= most_bytes {
        let whole = escaped(text);
        if whole.len() <= most_bytes {
            return whole;
        }
    }
    let half = most_bytes.saturating_sub(ELLIPSIS.len()) / 2;
    let mut head = escaped(&text[..floor(text, half)]);
    head.truncate(floor(&head, half));
    let tail = escaped(&text[ceil(text, text.len().saturating_sub(half))..]);
    format!("{head}{ELLIPSIS}{}", &tail[ceil(&tail, tail.len().saturating_sub(half))..])
}

fn escape(c: char) -> String {
    if c.is_control() { c.escape_default().to_string() } else { c.to_string() }
}

/// The last place between characters that is not behind `at`.
fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|&at| text.is_char_boundary(at)).unwrap_or(0)
}

/// The first place between characters that is not before `at`.
fn ceil(text: &str, at: usize) -> usize {
    (at..text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}

/// A problem at one place of a model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Where it is.
    pub place: String,
    /// What is wrong and what to do.
    pub text: String,
    /// What problems have in common that are told together.
    pub cause: String,
}

/// The most problems that are kept of one model; the others are counted.
pub const MAX_PROBLEMS: usize = 1000;

/// Problems of one model as they are found: the first [`MAX_PROBLEMS`], and how many more there are.
#[derive(Clone, Debug)]
pub struct Capped<T> {
    found: Vec<T>,
    omitted: usize,
}

impl<T> Default for Capped<T> {
    fn default() -> Self {
        Self { found: Vec::new(), omitted: 0 }
    }
}

impl<T> Capped<T> {
    /// Adds a problem.
    pub fn add(&mut self, problem: T) {
        if self.found.len() < MAX_PROBLEMS {
            self.found.push(problem);
        } else {
            self.omitted += 1;
        }
    }

    /// True if there are none yet.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// Those that are kept; at the end what `more` makes of the number of others, if there are any.
    pub fn into_found(mut self, more: impl FnOnce(usize) -> T) -> Vec<T> {
        if self.omitted > 0 {
            self.found.push(more(self.omitted));
        }
        self.found
    }
}

/// One line per cause, with one place and the number of others; the most frequent causes first where there are many. All lines
/// together stay readable however many problems there are and whatever they quote.
pub fn lines(problems: impl IntoIterator<Item = Problem>) -> Vec<String> {
    let mut groups: Vec<(Problem, usize)> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for problem in problems {
        match known.get(&problem.cause) {
            Some(&group) => groups[group].1 += 1,
            None => {
                known.insert(problem.cause.clone(), groups.len());
                groups.push((problem, 1));
            }
        }
    }
    if groups.len() > LIST_LINES {
        groups.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    }
    let left_out = groups.split_off(groups.len().min(LIST_LINES));
    let line = |(problem, count): &(Problem, usize)| {
        let others = match count - 1 {
            0 => String::new(),
            1 => " (and 1 more such place)".to_owned(),
            others => format!(" (and {others} more such places)"),
        };
        format!("{}: {}{others}", name(&problem.place), sentence(&problem.text))
    };
    let mut lines: Vec<String> = groups.iter().map(line).collect();
    lines = fitted(&lines);
    if !left_out.is_empty() {
        let places: usize = left_out.iter().map(|(_, count)| count).sum();
        lines.push(format!("and {} other problems, at {places} places", left_out.len()));
    }
    lines
}

/// A message of any number of lines, which may quote anything: no line and not the whole is longer than anyone reads.
pub fn block(text: &str) -> String {
    let text = text.replace('\t', "    ");
    let all: Vec<&str> = text.lines().collect();
    const KEPT_LINES: usize = 20;
    let mut lines: Vec<&str> = all.iter().take(KEPT_LINES).copied().collect();
    if all.len() > 2 * KEPT_LINES {
        lines.push("…");
    }
    lines.extend(&all[all.len().saturating_sub(KEPT_LINES).max(KEPT_LINES.min(all.len()))..]);
    fitted(&lines).join("\n")
}

/// Lines with control characters escaped, each cut to an equal share of [`LIST_BYTES`] if they are longer together.
fn fitted<L: AsRef<str>>(lines: &[L]) -> Vec<String> {
    let is_long = lines.iter().map(|line| line.as_ref().len()).sum::<usize>() > LIST_BYTES;
    let most = if is_long { LIST_BYTES / lines.len() } else { LIST_BYTES };
    lines.iter().map(|line| shortened(line.as_ref(), most)).collect()
}

/// A text without numbers and quoted parts: what messages have in common that differ in sizes and values only.
pub fn without_values(text: &str) -> String {
    let (mut kept, mut closing) = (String::new(), None);
    for c in text.chars() {
        match (closing, c) {
            (Some(end), c) if c == end => closing = None,
            (Some(_), _) => {}
            (None, '"' | '`') => closing = Some(c),
            (None, '[') => closing = Some(']'),
            (None, c) if c.is_ascii_digit() => {}
            (None, c) => kept.push(c),
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_cut_in_the_middle_and_escaped() {
        assert_eq!(name("a\x1b[2Jb\n"), "a\\u{1b}[2Jb\\n");
        assert_eq!(name("größe/层"), "größe/层");
        assert_eq!(shortened("abcdefghijk", 9), "abc…ijk");
        for text in ["é".repeat(500), "\n".repeat(150), "x".repeat(1 << 20), "a\u{1}层".repeat(99)] {
            let shown = name(&text);
            assert!(shown.len() <= NAME_BYTES && shown.len() > NAME_BYTES - 12, "{shown}");
            assert!(shown.contains('…') && !shown.contains(char::is_control), "{shown}");
        }
    }

    fn problem(place: &str, text: &str) -> Problem {
        Problem { place: place.to_owned(), text: text.to_owned(), cause: without_values(text) }
    }

    #[test]
    fn problems_of_one_cause_are_one_line() {
        let problems =
            (0..300).map(|at| problem(&format!("n{at}"), &format!("{} of [{at}]", ["a", "b", "c"][at % 3])));
        let said = lines(problems);
        let more = "(and 99 more such places)";
        assert_eq!(
            said,
            [format!("n0: a of [0] {more}"), format!("n1: b of [1] {more}"), format!("n2: c of [2] {more}")]
        );
        assert_eq!(lines([problem("x", "a")]), ["x: a"]);
    }

    #[test]
    fn blocks_keep_their_ends() {
        assert_eq!(block("a\n  b\n\tc"), "a\n  b\n    c");
        let numbered = |count: usize| (0..count).map(|at| at.to_string()).collect::<Vec<_>>().join("\n");
        for count in [1, 19, 20, 21, 39, 40] {
            assert_eq!(block(&numbered(count)), numbered(count));
        }
        let many = block(&numbered(9999));
        assert!(
            many.starts_with("0\n1\n") && many.ends_with("\n9998") && many.lines().count() == 41,
            "{many}"
        );
        assert!(block(&"x".repeat(1 << 20)).len() < 4000);
        assert!(block(&vec!["y".repeat(1 << 16); 1000].join("\n")).len() < 4000);
    }

    #[test]
    fn lists_stay_short() {
        let letters = |at: usize| "abcdefghijklmnopqrstuvwxyz"[at..].repeat(40_000);
        let said = lines((0..26).map(|at| problem(&letters(at), &letters(at))));
        assert_eq!(said.len(), LIST_LINES + 1);
        assert_eq!(said[LIST_LINES], "and 8 other problems, at 8 places");
        assert!(said.concat().len() < 4000);
    }
}
