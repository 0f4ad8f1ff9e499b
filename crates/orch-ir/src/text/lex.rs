//! Tokens with their places.

use std::fmt;

/// A place in a text, counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// Line.
    pub line: usize,
    /// Column, in characters.
    pub column: usize,
}

/// Why a text is not a graph.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    /// Line of the problem, from 1.
    pub line: usize,
    /// Column of the problem in characters, from 1.
    pub column: usize,
    /// What was found and what was expected.
    pub message: String,
}

impl ParseError {
    /// An error at a place.
    pub fn new(position: Position, message: impl Into<String>) -> Self {
        Self { line: position.line, column: position.column, message: message.into() }
    }
}

/// The smallest piece of text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Token {
    /// Letters, digits, `_` and `.`, not starting with a digit.
    Word(String),
    /// What starts with a digit or `-`.
    Number(String),
    /// A quoted text, without quotes and escapes.
    Text(String),
    /// One of `{}[]():,=;`.
    Sign(char),
    /// The end of a line that is not empty.
    NewLine,
    /// The end of the text.
    End,
}

impl Token {
    /// The text of a word, a number or a quoted text; empty for others.
    pub fn into_text(self) -> String {
        match self {
            Token::Word(text) | Token::Number(text) | Token::Text(text) => text,
            Token::Sign(_) | Token::NewLine | Token::End => String::new(),
        }
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Token::Word(text) | Token::Number(text) => f.write_str(text),
            Token::Text(_) => f.write_str("a quoted text"),
            Token::Sign(sign) => write!(f, "\"{sign}\""),
            Token::NewLine => f.write_str("the end of the line"),
            Token::End => f.write_str("the end of the text"),
        }
    }
}

/// Reads tokens from a text.
pub struct Lexer<'a> {
    rest: std::iter::Peekable<std::str::Chars<'a>>,
    position: Position,
}

impl<'a> Lexer<'a> {
    /// A lexer at the start of `text`.
    pub fn new(text: &'a str) -> Self {
        Self { rest: text.chars().peekable(), position: Position { line: 1, column: 1 } }
    }

    /// The next token and where it starts.
    ///
    /// # Errors
    /// If no token starts there, or a quoted text does not end.
    pub fn next(&mut self) -> Result<(Position, Token), ParseError> {
        self.skip_blanks();
        let start = self.position;
        let Some(first) = self.bump() else { return Ok((start, Token::End)) };
        let token = match first {
            '\n' => Token::NewLine,
            '{' | '}' | '[' | ']' | '(' | ')' | ':' | ',' | '=' | ';' => Token::Sign(first),
            '"' => Token::Text(self.quoted(start)?),
            '-' | '0'..='9' => Token::Number(self.number(first)),
            'a'..='z' | 'A'..='Z' | '_' => Token::Word(self.continued(first)),
            other => return Err(ParseError::new(start, format!("unexpected character {other:?}"))),
        };
        Ok((start, token))
    }

    /// The next character.
    fn bump(&mut self) -> Option<char> {
        let c = self.rest.next()?;
        if c == '\n' {
            self.position = Position { line: self.position.line + 1, column: 1 };
        } else {
            self.position.column += 1;
        }
        Some(c)
    }

    /// Skips blanks and a comment, not the end of the line.
    fn skip_blanks(&mut self) {
        let mut comment = false;
        while let Some(&c) = self.rest.peek() {
            comment |= c == '#';
            if c == '\n' || !(comment || c.is_whitespace()) {
                return;
            }
            self.bump();
        }
    }

    /// The rest of a word.
    fn continued(&mut self, first: char) -> String {
        let mut text = String::from(first);
        while let Some(&c) = self.rest.peek() {
            if !(c.is_ascii_alphanumeric() || c == '_' || c == '.') {
                break;
            }
            text.push(c);
            self.bump();
        }
        text
    }

    /// The rest of a number; a sign belongs to it after an exponent's `e`.
    fn number(&mut self, first: char) -> String {
        let mut text = self.continued(first);
        let is_exponent = text.ends_with('e') && !text.starts_with("0x");
        if is_exponent && let Some(&sign @ ('-' | '+')) = self.rest.peek() {
            self.bump();
            text.push_str(&self.continued(sign));
        }
        text
    }

    /// The rest of a quoted text.
    fn quoted(&mut self, start: Position) -> Result<String, ParseError> {
        let mut text = String::new();
        loop {
            let at = self.position;
            match self.bump() {
                None | Some('\n') => {
                    return Err(ParseError::new(start, "the quoted text does not end on its line"));
                }
                Some('"') => return Ok(text),
                Some('\\') => text.push(self.escape().ok_or_else(|| {
                    ParseError::new(at, "unknown escape: \\\\, \\\", \\n or \\u{..} expected")
                })?),
                Some(c) => text.push(c),
            }
        }
    }

    /// The character that an escape stands for.
    fn escape(&mut self) -> Option<char> {
        match self.bump()? {
            '\\' => Some('\\'),
            '"' => Some('"'),
            'n' => Some('\n'),
            'u' => {
                (self.bump()? == '{').then_some(())?;
                let mut digits = String::new();
                loop {
                    match self.bump()? {
                        '}' => return char::from_u32(u32::from_str_radix(&digits, 16).ok()?),
                        digit if digits.len() < 6 => digits.push(digit),
                        _ => return None,
                    }
                }
            }
            _ => None,
        }
    }
}

/// The text in quotes, with escapes for what a line cannot hold.
pub fn quote(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            '\n' => quoted.push_str("\\n"),
            c if c.is_control() => quoted.extend(c.escape_unicode()),
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}
