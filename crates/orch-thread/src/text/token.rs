//! Tokens of the text of thread programs.

use crate::text::error::ThreadTextError;
use crate::text::words::is_keyword;
use orch_compute::expr::Const;
use orch_ir::DType;

/// Symbols, longer ones before their prefixes.
const SYMBOLS: [&str; 25] = [
    "..=", "//", "==", "!=", "<=", ">=", "{", "}", "[", "]", "(", ")", ":", ";", ",", "=", "+", "-", "*",
    "/", "%", "<", ">", "#", ".",
];

/// A piece of text.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Token {
    /// A symbol.
    Symbol(&'static str),
    /// Letters, digits and underscores; also numbers with their sign, fraction and exponent, and `f32#7fc00001`.
    Word(String),
    /// A name in quotes, without them.
    Quoted(String),
    /// `%n`.
    Label(String),
    /// The rest of a line after `#`.
    Comment(String),
}

/// The tokens of a text and a position among them.
pub(crate) struct Lexer {
    tokens: Vec<(Token, usize)>,
    at: usize,
    lines: usize,
}

impl Lexer {
    /// Takes a whole text apart.
    pub(crate) fn new(text: &str) -> Result<Self, ThreadTextError> {
        let mut tokens = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let mut rest = line.trim_start();
            while !rest.is_empty() {
                let fail = |problem: String| ThreadTextError { line: index + 1, problem };
                let after_value = tokens.last().is_some_and(|(token, _)| ends_value(token));
                let (token, length) = scan(rest, after_value).map_err(fail)?;
                tokens.push((token, index + 1));
                rest = rest[length..].trim_start();
            }
        }
        Ok(Self { tokens, at: 0, lines: text.lines().count() })
    }

    /// An error at the token read last.
    pub(crate) fn error<T>(&self, problem: impl Into<String>) -> Result<T, ThreadTextError> {
        let line = self.tokens.get(self.at.saturating_sub(1)).map_or(self.lines, |(_, line)| *line);
        Err(ThreadTextError { line, problem: problem.into() })
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    /// The next token.
    pub(crate) fn next(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.at += 1;
        token
    }

    /// True if the next token is this symbol or word.
    pub(crate) fn is(&self, text: &str) -> bool {
        match self.peek() {
            Some(Token::Symbol(symbol)) => *symbol == text,
            Some(Token::Word(word)) => word == text,
            _ => false,
        }
    }

    /// Skips this symbol or word if it is next.
    pub(crate) fn accept(&mut self, text: &str) -> bool {
        let is_next = self.is(text);
        self.at += usize::from(is_next);
        is_next
    }

    /// Skips this symbol or word, which must be next.
    pub(crate) fn expect(&mut self, text: &str) -> Result<(), ThreadTextError> {
        if self.accept(text) {
            return Ok(());
        }
        self.unexpected(text)
    }

    fn unexpected<T>(&mut self, expected: &str) -> Result<T, ThreadTextError> {
        match self.next() {
            Some(token) => self.error(format!("{expected} is expected, not {}", token.text())),
            None => Err(ThreadTextError { line: self.lines, problem: "the text ends early".into() }),
        }
    }

    /// Nothing may follow.
    pub(crate) fn expect_end(&mut self) -> Result<(), ThreadTextError> {
        if self.peek().is_none() { Ok(()) } else { self.unexpected("the end of the text") }
    }

    /// A word.
    pub(crate) fn word(&mut self) -> Result<String, ThreadTextError> {
        match self.peek() {
            Some(Token::Word(word)) => {
                let word = word.clone();
                self.at += 1;
                Ok(word)
            }
            _ => self.unexpected("a word"),
        }
    }

    /// A name as it is written, and the name that it denotes.
    pub(crate) fn name(&mut self) -> Result<(String, String), ThreadTextError> {
        let quoted = match self.peek() {
            Some(Token::Quoted(text)) => Some(text.clone()),
            _ => None,
        };
        let (mut token, name) = match quoted {
            Some(text) => {
                self.at += 1;
                (format!("\"{text}\""), unescape(&text))
            }
            None => {
                let word = self.word()?;
                if is_keyword(&word) {
                    return self.error(format!("a name is expected, not {word}"));
                }
                (word.clone(), word)
            }
        };
        if self.accept(".") {
            token = format!("{token}.{}", self.count()?);
        }
        Ok((token, name))
    }

    /// A number of things.
    pub(crate) fn count(&mut self) -> Result<usize, ThreadTextError> {
        let word = self.word()?;
        word.parse().or_else(|_| self.error(format!("a count is expected, not {word}")))
    }

    /// An integer.
    pub(crate) fn integer(&mut self) -> Result<i64, ThreadTextError> {
        let word = self.word()?;
        word.parse().or_else(|_| self.error(format!("an integer is expected, not {word}")))
    }

    /// The label that is next, if one is.
    pub(crate) fn label(&mut self) -> Option<String> {
        match self.peek() {
            Some(Token::Label(label)) => {
                let label = label.clone();
                self.at += 1;
                Some(label)
            }
            _ => None,
        }
    }

    /// The comment that is next, if one is.
    pub(crate) fn comment(&mut self) -> Option<String> {
        match self.peek() {
            Some(Token::Comment(text)) => {
                let text = unescape(text);
                self.at += 1;
                Some(text)
            }
            _ => None,
        }
    }

    /// The constant that is next, if one is.
    pub(crate) fn constant(&mut self) -> Result<Option<Const>, ThreadTextError> {
        let Some(Token::Word(word)) = self.peek() else { return Ok(None) };
        let word = word.clone();
        let number = word.trim_start_matches('-');
        let looks_like = number.starts_with(|c: char| c.is_ascii_digit())
            || ["true", "false"].contains(&number)
            || number.starts_with("inf")
            || number.starts_with("nan")
            || number.contains('#');
        if !looks_like {
            return Ok(None);
        }
        self.at += 1;
        match constant(&word) {
            Some(constant) => Ok(Some(constant)),
            None => self.error(format!("{word} is not a constant")),
        }
    }
}

impl Token {
    fn text(&self) -> &str {
        match self {
            Token::Symbol(symbol) => symbol,
            Token::Word(text) | Token::Quoted(text) | Token::Label(text) | Token::Comment(text) => text,
        }
    }
}

/// True if a minus sign after the token is a subtraction.
fn ends_value(token: &Token) -> bool {
    match token {
        Token::Symbol(symbol) => matches!(*symbol, ")" | "]"),
        Token::Word(word) => !["to", "step", "if"].contains(&word.as_str()),
        Token::Quoted(_) | Token::Label(_) => true,
        Token::Comment(_) => false,
    }
}

/// The token at the start of `text`, which is not blank, and its length.
fn scan(text: &str, after_value: bool) -> Result<(Token, usize), String> {
    let rest_of = |skip: usize, keep: fn(char) -> bool| {
        text[skip..].find(|c| !keep(c)).map_or(text.len(), |length| skip + length)
    };
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let first = text.chars().next().ok_or("the text ends early")?;
    if first == '#' {
        return Ok((Token::Comment(text[1..].trim_start().to_owned()), text.len()));
    }
    if first == '"' {
        let end = text[1..].find('"').ok_or("a quote is not closed")? + 1;
        return Ok((Token::Quoted(text[1..end].to_owned()), end + 1));
    }
    if first == '%' && text[1..].starts_with(|c: char| c.is_ascii_digit()) {
        let end = rest_of(1, |c| c.is_ascii_digit());
        return Ok((Token::Label(text[..end].to_owned()), end));
    }
    let signed = text.strip_prefix('-').filter(|_| !after_value);
    let number = signed.unwrap_or(text);
    let is_number = number.starts_with(|c: char| c.is_ascii_digit());
    if is_number || signed.is_some_and(|rest| rest.starts_with("inf") || rest.starts_with("nan")) {
        let end = text.len() - number.len() + number_length(number);
        return Ok((Token::Word(text[..end].to_owned()), end));
    }
    if is_word(first) {
        let end = rest_of(0, |c| c.is_ascii_alphanumeric() || c == '_' || c == '#');
        return Ok((Token::Word(text[..end].to_owned()), end));
    }
    (SYMBOLS.iter().find(|symbol| text.starts_with(**symbol)))
        .map(|symbol| (Token::Symbol(symbol), symbol.len()))
        .ok_or_else(|| format!("unexpected character {first}"))
}

/// Length of an unsigned number: digits, a fraction, an exponent, a type.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let mut at = 0;
    while let Some(&byte) = bytes.get(at) {
        let next_is_digit = bytes.get(at + 1).is_some_and(u8::is_ascii_digit);
        let in_exponent = at > 0 && bytes[at - 1] == b'e';
        let belongs = byte.is_ascii_alphanumeric()
            || byte == b'_'
            || (byte == b'.' && next_is_digit)
            || (matches!(byte, b'-' | b'+') && in_exponent && next_is_digit);
        if !belongs {
            break;
        }
        at += 1;
    }
    at
}

fn constant(word: &str) -> Option<Const> {
    match word {
        "true" => return Some(Const::int(DType::Bool, 1)),
        "false" => return Some(Const::int(DType::Bool, 0)),
        _ => {}
    }
    if let Some((dtype, bits)) = word.split_once('#') {
        let dtype = DType::from_name(dtype)?;
        return Some(Const { dtype, bits: u64::from_str_radix(bits, 16).ok()? });
    }
    if let Some((digits, dtype)) = word.rsplit_once('_') {
        return parse_constant(digits, DType::from_name(dtype)?);
    }
    let is_float = word.contains(['.', 'e', 'n']);
    parse_constant(word, if is_float { DType::F32 } else { DType::I64 })
}

/// The text that the printer's escapes stand for.
fn unescape(text: &str) -> String {
    let mut result = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        result.push(match (c, c == '\\') {
            (c, false) => c,
            _ => match chars.next() {
                Some('n') => '\n',
                Some('q') => '"',
                Some(other) => other,
                None => '\\',
            },
        });
    }
    result
}

/// A constant of `dtype` from its digits.
fn parse_constant(digits: &str, dtype: DType) -> Option<Const> {
    match dtype {
        DType::Bool => None,
        DType::F32 => {
            let value: f32 = digits.parse().ok()?;
            Some(match value.is_nan() {
                true => Const::float(dtype, f64::NAN),
                false => Const { dtype, bits: value.to_bits().into() },
            })
        }
        _ if dtype.is_float() => Some(Const::float(dtype, digits.parse().ok()?)),
        _ => {
            let value: i128 = digits.parse().ok()?;
            Some(Const::int(dtype, value)).filter(|c| c.as_int() == Some(value))
        }
    }
}
