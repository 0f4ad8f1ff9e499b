//! Graphs from text.

use super::attr::{Attr, Attrs};
use super::build::build;
use super::constant::{from_elements, from_hex};
use super::draft::{Draft, Typed};
use super::lex::{Lexer, ParseError, Position, Token};
use crate::validate::{MAX_DEPTH, MAX_RANK, validate};
use crate::{DType, PrimGraph, Shape, Tensor, TensorId};
use std::borrow::Cow;

/// How deep lists may nest in an attribute.
const MAX_LIST_DEPTH: usize = 4;

/// The graph that a text states.
///
/// # Errors
/// If the text is not in the grammar, or the graph is not valid.
pub fn parse(text: &str) -> Result<PrimGraph, ParseError> {
    let mut parser = Parser::new(text)?;
    parser.skip_lines()?;
    let start = parser.position;
    let graph = parser.graph(1)?;
    parser.skip_lines()?;
    parser.expect(&Token::End)?;
    match validate(&graph).first() {
        Some(violation) => Err(ParseError::new(start, violation.to_string())),
        None => Ok(graph),
    }
}

/// The tensor that a text like `f32[2] = [1, 2]` states.
///
/// # Errors
/// If the text is not in the grammar, or the elements do not fit the type.
pub fn parse_tensor(text: &str) -> Result<Tensor, ParseError> {
    let mut parser = Parser::new(text)?;
    parser.skip_lines()?;
    let (dtype, shape) = parser.tensor_type()?;
    let value = parser.constant(dtype, shape)?;
    parser.skip_lines()?;
    parser.expect(&Token::End)?;
    Ok(value)
}

/// A recursive-descent parser that looks one token ahead.
struct Parser<'a> {
    lexer: Lexer<'a>,
    /// The token looked at.
    token: Token,
    /// Where it starts.
    position: Position,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Result<Self, ParseError> {
        let mut lexer = Lexer::new(text);
        let (position, token) = lexer.next()?;
        Ok(Self { lexer, token, position })
    }

    /// The token looked at; moves to the next one.
    fn take(&mut self) -> Result<Token, ParseError> {
        let (position, token) = self.lexer.next()?;
        self.position = position;
        Ok(std::mem::replace(&mut self.token, token))
    }

    fn skip_lines(&mut self) -> Result<(), ParseError> {
        while self.token == Token::NewLine {
            self.take()?;
        }
        Ok(())
    }

    fn error(&self, expected: &str) -> ParseError {
        ParseError::new(self.position, format!("{expected} expected, {} found", self.token))
    }

    fn expect(&mut self, token: &Token) -> Result<(), ParseError> {
        if self.token == *token { self.take().map(drop) } else { Err(self.error(&token.to_string())) }
    }

    fn sign(&mut self, sign: char) -> Result<(), ParseError> {
        self.expect(&Token::Sign(sign))
    }

    fn keyword(&mut self, word: &str) -> Result<(), ParseError> {
        self.expect(&Token::Word(word.to_owned()))
    }

    fn is_word(&self, word: &str) -> bool {
        matches!(&self.token, Token::Word(found) if found == word)
    }

    fn word(&mut self, what: &str) -> Result<String, ParseError> {
        match &self.token {
            Token::Word(_) => Ok(self.take()?.into_text()),
            _ => Err(self.error(what)),
        }
    }

    fn text(&mut self, what: &str) -> Result<String, ParseError> {
        match &self.token {
            Token::Text(_) => Ok(self.take()?.into_text()),
            _ => Err(self.error(what)),
        }
    }

    /// `item, item, ..` up to and including `close`; lines may end between items.
    fn list<T>(
        &mut self,
        close: char,
        mut item: impl FnMut(&mut Self) -> Result<T, ParseError>,
    ) -> Result<Vec<T>, ParseError> {
        let mut items = Vec::new();
        self.skip_lines()?;
        while self.token != Token::Sign(close) {
            items.push(item(self)?);
            self.skip_lines()?;
            if self.token != Token::Sign(close) {
                self.sign(',')?;
                self.skip_lines()?;
            }
        }
        self.take()?;
        Ok(items)
    }

    /// `graph "name" { .. }`; `depth` counts the graphs around it and itself.
    fn graph(&mut self, depth: usize) -> Result<PrimGraph, ParseError> {
        if depth > MAX_DEPTH {
            return Err(ParseError::new(self.position, format!("graphs nest deeper than {MAX_DEPTH}")));
        }
        self.keyword("graph")?;
        let mut draft = Draft::new(self.text("the graph's name")?);
        self.sign('{')?;
        loop {
            self.skip_lines()?;
            if self.token == Token::Sign('}') {
                self.take()?;
                return draft.finish();
            }
            self.statement(&mut draft, depth)?;
            if !matches!(self.token, Token::NewLine | Token::Sign('}')) {
                return Err(self.error("the end of the line"));
            }
        }
    }

    fn statement(&mut self, draft: &mut Draft, depth: usize) -> Result<(), ParseError> {
        if !draft.outputs.is_empty() && !self.is_word("output") {
            return Err(self.error("an output, for they come last,"));
        }
        if self.is_word("input") {
            self.input(draft)
        } else if self.is_word("output") {
            self.take()?;
            let name = self.text("the output's name")?;
            let (position, id) = self.tensor_id()?;
            draft.outputs.push((name, id, position));
            Ok(())
        } else if self.is_word("const") {
            self.take()?;
            let typed = self.typed()?;
            draft.define_up_to(typed.id, typed.position)?;
            let value = self.constant(typed.dtype, typed.shape)?;
            draft.graph.add_constant(value);
            Ok(())
        } else {
            self.node(draft, depth)
        }
    }

    fn input(&mut self, draft: &mut Draft) -> Result<(), ParseError> {
        if draft.inputs_end {
            return Err(ParseError::new(self.position, "inputs come before constants and nodes"));
        }
        self.take()?;
        let name = self.text("the input's name")?;
        let typed = self.typed()?;
        draft.inputs.push((name, typed));
        Ok(())
    }

    /// `results = name operands attributes ; from "origin"`.
    fn node(&mut self, draft: &mut Draft, depth: usize) -> Result<(), ParseError> {
        let results = if self.token == Token::Sign('(') {
            self.take()?;
            self.list(')', Self::typed)?
        } else {
            vec![self.typed()?]
        };
        self.sign('=')?;
        let start = self.position;
        let name = self.word("the name of an operation")?;
        if let Some(first) = results.first() {
            draft.define_up_to(first.id, first.position)?;
        }
        let operands = self.operands(&draft.graph)?;
        let attrs = self.attributes(depth)?;
        let origin = self.origin()?;

        let types: Vec<(DType, Shape)> = results.iter().map(|r| (r.dtype, r.shape.clone())).collect();
        let op = build(&name, attrs, &types)
            .map_err(|(position, message)| ParseError::new(position.unwrap_or(start), message))?;
        draft.graph.set_origin(origin);
        let outputs =
            draft.graph.add_node(op, operands).map_err(|error| ParseError::new(start, error.to_string()))?;
        if outputs.len() != results.len() {
            let message = format!("{name} has {} results, {} are stated", outputs.len(), results.len());
            return Err(ParseError::new(start, message));
        }
        for (id, stated) in outputs.into_iter().zip(results) {
            let actual = draft.graph.tensor(id);
            let message = if id != stated.id {
                format!("this result must be {id}")
            } else if (actual.dtype, &actual.shape) != (stated.dtype, &stated.shape) {
                format!(
                    "{id} is {}{}, but {}{} is stated",
                    actual.dtype, actual.shape, stated.dtype, stated.shape
                )
            } else {
                continue;
            };
            return Err(ParseError::new(stated.position, message));
        }
        Ok(())
    }

    /// `t0, t1, ..`, which the graph must have.
    fn operands(&mut self, graph: &PrimGraph) -> Result<Vec<TensorId>, ParseError> {
        let mut operands = Vec::new();
        while self.is_tensor_id() {
            let (position, id) = self.tensor_id()?;
            if id.index() >= graph.tensors().len() {
                return Err(ParseError::new(position, format!("{id} is not defined before it is used")));
            }
            operands.push(id);
            if self.token != Token::Sign(',') {
                break;
            }
            self.take()?;
            if !self.is_tensor_id() {
                return Err(self.error("a tensor"));
            }
        }
        Ok(operands)
    }

    /// `name=value name=value ..`.
    fn attributes(&mut self, depth: usize) -> Result<Attrs, ParseError> {
        let mut attrs = Attrs::default();
        while matches!(self.token, Token::Word(_)) {
            let position = self.position;
            let name = self.word("the name of an attribute")?;
            self.sign('=')?;
            let value = self.attribute(depth, 0)?;
            attrs.insert(name, position, value)?;
        }
        Ok(attrs)
    }

    fn attribute(&mut self, depth: usize, list_depth: usize) -> Result<Attr<'static>, ParseError> {
        if self.is_word("graph") {
            return Ok(Attr::Graph(Cow::Owned(self.graph(depth + 1)?)));
        }
        match self.token {
            Token::Word(_) => Ok(Attr::Word(self.take()?.into_text())),
            Token::Number(_) => Ok(Attr::Number(self.take()?.into_text())),
            Token::Text(_) => Ok(Attr::Text(self.take()?.into_text())),
            Token::Sign('[') if list_depth < MAX_LIST_DEPTH => {
                self.take()?;
                Ok(Attr::List(self.list(']', |parser| parser.attribute(depth, list_depth + 1))?))
            }
            _ => Err(self.error("the value of an attribute")),
        }
    }

    /// `; from "origin"`, or nothing.
    fn origin(&mut self) -> Result<String, ParseError> {
        if self.token != Token::Sign(';') {
            return Ok(String::new());
        }
        self.take()?;
        self.keyword("from")?;
        self.text("the origin of the node")
    }

    fn is_tensor_id(&self) -> bool {
        matches!(&self.token, Token::Word(word) if tensor_id(word).is_some())
    }

    fn tensor_id(&mut self) -> Result<(Position, TensorId), ParseError> {
        let position = self.position;
        match &self.token {
            Token::Word(word) => match tensor_id(word) {
                Some(id) => {
                    self.take()?;
                    Ok((position, id))
                }
                None => Err(self.error("a statement or a tensor like t0")),
            },
            _ => Err(self.error("a statement or a tensor like t0")),
        }
    }

    /// `t0: f32[1, 2]`.
    fn typed(&mut self) -> Result<Typed, ParseError> {
        let (position, id) = self.tensor_id()?;
        self.sign(':')?;
        let (dtype, shape) = self.tensor_type()?;
        Ok(Typed { position, id, dtype, shape })
    }

    /// `f32[1, 2]`.
    fn tensor_type(&mut self) -> Result<(DType, Shape), ParseError> {
        let position = self.position;
        let name = self.word("an element type")?;
        let dtype = DType::from_name(&name)
            .ok_or_else(|| ParseError::new(position, format!("there is no element type {name}")))?;
        self.sign('[')?;
        let dims = self.list(']', |parser| match &parser.token {
            Token::Number(digits) => {
                let extent = digits.parse::<usize>().map_err(|_| parser.error("an extent"))?;
                parser.take()?;
                Ok(extent)
            }
            _ => Err(parser.error("an extent")),
        })?;
        if dims.len() > MAX_RANK {
            return Err(ParseError::new(position, format!("more than {MAX_RANK} dimensions")));
        }
        let shape =
            Shape::checked(dims).ok_or_else(|| ParseError::new(position, "the tensor is too large"))?;
        Ok((dtype, shape))
    }

    /// `= [1, 2]` or `= hex "00.."`.
    fn constant(&mut self, dtype: DType, shape: Shape) -> Result<Tensor, ParseError> {
        self.sign('=')?;
        let position = self.position;
        let value = if self.is_word("hex") {
            self.take()?;
            from_hex(dtype, shape, &self.text("hexadecimal digits in quotes")?)
        } else {
            self.sign('[')?;
            from_elements(dtype, shape, &self.list(']', Self::element)?)
        };
        value.map_err(|message| ParseError::new(position, message))
    }

    /// A number, a word, or `nan:0x..`.
    fn element(&mut self) -> Result<String, ParseError> {
        let mut element = match self.token {
            Token::Number(_) | Token::Word(_) => self.take()?.into_text(),
            _ => return Err(self.error("an element")),
        };
        if self.token == Token::Sign(':') {
            self.take()?;
            match self.token {
                Token::Number(_) => element = format!("{element}:{}", self.take()?.into_text()),
                _ => return Err(self.error("the bits of a NaN")),
            }
        }
        Ok(element)
    }
}

/// The tensor that a word like `t3` names.
fn tensor_id(word: &str) -> Option<TensorId> {
    let digits = word.strip_prefix(TensorId::PREFIX)?;
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    is_number.then(|| digits.parse().ok().map(TensorId)).flatten()
}
