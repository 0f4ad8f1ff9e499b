//! Block programs as text for people.

use crate::block::{ArgRole, BlockProgram, ReduceKind, Stage};
use crate::expr::VarId;
use crate::expr::text::{expr_text, var_name};
use crate::operands::OperandRounding;
use std::fmt;

impl fmt::Display for BlockProgram {
    /// One line per argument, the axes, one line per stage.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let operands = match self.rounding {
            OperandRounding::Half => "",
            OperandRounding::Tf32 => ", operands of the range of f32",
            OperandRounding::None => ", operands of f32",
        };
        writeln!(f, "block {}{operands}", self.name)?;
        for (number, arg) in self.args.iter().enumerate() {
            let role = match arg.role {
                ArgRole::Input => "input",
                ArgRole::Constant => "constant",
                ArgRole::Output => "output",
                ArgRole::Updated => "updated",
            };
            write!(f, "  a{number}: {}{} {role} {}", arg.dtype, arg.shape, arg.tensor)?;
            if !arg.layout.is_row_major() {
                write!(f, " stored {:?}", arg.layout.order())?;
            }
            writeln!(f)?;
        }
        for axis in &self.axes {
            writeln!(f, "  {} < {}", var_name(&self.exprs, axis.var), axis.extent)?;
        }
        for stage in &self.stages {
            writeln!(f, "  {}", self.stage_text(stage))?;
        }
        Ok(())
    }
}

impl BlockProgram {
    fn stage_text(&self, stage: &Stage) -> String {
        let names = |vars: &[VarId]| {
            vars.iter().map(|&var| var_name(&self.exprs, var)).collect::<Vec<_>>().join(", ")
        };
        match stage {
            Stage::Reduce { stage, op, domain, reduced, body, kind } => {
                let dot = if *kind == ReduceKind::Plain { "" } else { " dot" };
                let body = expr_text(&self.exprs, *body);
                format!("{stage}[{}] = {} over {} of{dot} {body}", names(domain), op.name(), names(reduced))
            }
            Stage::Store { arg, index, domain, body } => {
                let index: Vec<String> =
                    index.iter().map(|&component| expr_text(&self.exprs, component).to_string()).collect();
                let body = expr_text(&self.exprs, *body);
                format!("{arg}[{}] = {body}    for {}", index.join(", "), names(domain))
            }
        }
    }
}
