//! Reads the header of a program: tasks, phases, CTA, buffers, tiles, tensor maps, mbarriers; and declarations of variables.

use crate::amx::AmxShape;
use crate::cta::Cta;
use crate::program::{Buffer, Scope, TaskGroups, ThreadProgram};
use crate::text::parse::{Parsed, Parser};
use crate::tma::{Mbarriers, TensorMap};
use orch_compute::expr::{VarId, VarInfo};

impl Parser {
    pub(crate) fn header(&mut self) -> Parsed<()> {
        self.lexer.expect("program")?;
        let name = self.lexer.word()?;
        self.lexer.expect(",")?;
        let tasks = self.lexer.count()?;
        self.lexer.expect("tasks")?;
        // The constructor's own task variable is replaced by the declared one.
        self.program = ThreadProgram { exprs: orch_compute::Exprs::new(), ..ThreadProgram::new(name, tasks) };
        self.program.task = self.declaration()?;
        while !self.lexer.is("{") {
            let word = self.lexer.word()?;
            if word == "tile" {
                self.tile_declaration()?;
                continue;
            }
            if word == "cta" {
                self.cta_declaration()?;
                continue;
            }
            if word == "phases" {
                self.program.phases = self.lexer.count()?;
                continue;
            }
            if word == "groups" {
                self.lexer.expect("of")?;
                let tasks = self.lexer.count()?;
                let first = self.declaration()?;
                self.program.groups = Some(TaskGroups { tasks, first });
                continue;
            }
            if word == "tensor_map" {
                self.tensor_map_declaration()?;
                continue;
            }
            if word == "mbarriers" {
                let full = self.lexer.count()?;
                self.lexer.expect("full")?;
                self.lexer.expect("of")?;
                let loads = self.lexer.count()?;
                self.lexer.expect("loads")?;
                let mut empty = 0;
                if self.lexer.accept(",") {
                    empty = self.lexer.count()?;
                    self.lexer.expect("empty")?;
                }
                self.program.mbarriers = Mbarriers { full, loads, empty };
                continue;
            }
            let scope = match word.as_str() {
                "input" => Scope::Input,
                "constant" => Scope::Constant,
                "output" => Scope::Output,
                "updated" => Scope::Updated,
                "shared" => Scope::Shared,
                "reused_shared" => Scope::ReusedShared,
                "scratch" => Scope::Scratch,
                other => {
                    let expected = "input, constant, output, shared, reused_shared, scratch, tile, groups, tensor_map, mbarriers, cta or {";
                    return self.error(format!("{expected} is expected, not {other}"));
                }
            };
            let (token, name) = self.lexer.name()?;
            self.lexer.expect(":")?;
            let dtype = self.dtype()?;
            self.lexer.expect("[")?;
            let elems = self.lexer.count()?;
            self.lexer.expect("]")?;
            let id = self.program.add_buffer(Buffer { name, dtype, elems, scope });
            if self.lexer.accept(",") {
                self.lexer.expect("evict_first")?;
                self.program.evict_first.insert(id);
            }
            if self.buffers.insert(token.clone(), id).is_some() {
                return self.error(format!("buffer {token} is declared twice"));
            }
        }
        Ok(())
    }

    /// `name: type[rows, columns]`.
    fn tile_declaration(&mut self) -> Parsed<()> {
        let (token, name) = self.lexer.name()?;
        self.lexer.expect(":")?;
        let dtype = self.dtype()?;
        self.lexer.expect("[")?;
        let rows = self.lexer.count()?;
        self.lexer.expect(",")?;
        let columns = self.lexer.count()?;
        self.lexer.expect("]")?;
        let id = self.program.add_tile(AmxShape { name, dtype, rows, columns });
        match self.tiles.insert(token.clone(), id) {
            None => Ok(()),
            Some(_) => self.error(format!("tile {token} is declared twice")),
        }
    }

    /// `name: buffer[offset], extents 768 128, strides 768, 64 rows`.
    fn tensor_map_declaration(&mut self) -> Parsed<()> {
        let (token, name) = self.lexer.name()?;
        self.lexer.expect(":")?;
        let buffer = self.buffer()?;
        self.lexer.expect("[")?;
        let offset = self.lexer.count()?;
        for word in ["]", ",", "extents"] {
            self.lexer.expect(word)?;
        }
        let extents = self.counts()?;
        self.lexer.expect("strides")?;
        let strides = self.counts()?;
        let rows = self.lexer.count()?;
        self.lexer.expect("rows")?;
        let id = self.program.add_tensor_map(TensorMap { name, buffer, offset, extents, strides, rows });
        match self.tensor_maps.insert(token.clone(), id) {
            None => Ok(()),
            Some(_) => self.error(format!("tensor_map {token} is declared twice")),
        }
    }

    /// Counts, up to a comma.
    fn counts(&mut self) -> Parsed<Vec<usize>> {
        let mut counts = Vec::new();
        while !self.lexer.accept(",") {
            counts.push(self.lexer.count()?);
        }
        Ok(counts)
    }

    /// `128 threads thread: i64 [0..=127], clusters of 1`, and perhaps `, barrier groups of 16` and `, loads ahead`.
    fn cta_declaration(&mut self) -> Parsed<()> {
        let threads = self.lexer.count()?;
        self.lexer.expect("threads")?;
        let thread = self.declaration()?;
        for word in [",", "clusters", "of"] {
            self.lexer.expect(word)?;
        }
        let cluster = self.lexer.count()?;
        let mut cta = Cta { threads, thread, cluster, barrier_group: 1, loads_ahead: false };
        while self.lexer.accept(",") {
            if self.lexer.accept("barrier") {
                self.lexer.expect("groups")?;
                self.lexer.expect("of")?;
                cta.barrier_group = self.lexer.count()?;
            } else {
                self.lexer.expect("loads")?;
                self.lexer.expect("ahead")?;
                cta.loads_ahead = true;
            }
        }
        self.program.cta = Some(cta);
        Ok(())
    }
    /// `name: type [low..=high, multiple n]`: declares the variable, or finds it if it was declared so before.
    pub(crate) fn declaration(&mut self) -> Parsed<VarId> {
        let (token, name) = self.lexer.name()?;
        self.lexer.expect(":")?;
        let ty = self.ty()?;
        let mut info = VarInfo { name, ty, range: None, multiple_of: 1 };
        if self.lexer.accept("[") {
            if !self.lexer.is("multiple") {
                let low = self.lexer.integer()?;
                self.lexer.expect("..=")?;
                info.range = Some((low, self.lexer.integer()?));
                self.lexer.accept(",");
            }
            if self.lexer.accept("multiple") {
                info.multiple_of = self.lexer.integer()?;
            }
            self.lexer.expect("]")?;
        }
        match self.vars.get(&token) {
            Some(&var) if *self.program.exprs.var_info(var) == info => Ok(var),
            Some(_) => self.error(format!("{token} is declared again as something else")),
            None => {
                let var = self.program.exprs.declare(info);
                self.vars.insert(token, var);
                Ok(var)
            }
        }
    }
}
