//! HiGHS as a solver: its C interface, loaded at run time.
//!
//! HiGHS (<https://highs.dev>, MIT licence) is not part of Orchestrion. Its shared library comes with many Linux
//! distributions (`libhighs.so.1`), and with the Python package `highspy`. Any version since 1.5 whose integers have
//! 32 bits will do.

use crate::os::{check_whole, loader_message};
use crate::symbols::symbol_table;
use libloading::Library;
use orch_plan::solver::{Milp, Solver, SolverError, SolverLimits, SolverOutcome, SolverStatus};
use std::ffi::{CStr, c_char, c_void};
use std::path::Path;

/// A loaded HiGHS library.
pub struct Highs {
    api: Api,
    name: String,
}

/// Why HiGHS cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "cannot use HiGHS from {path}: {reason}; give the path of libhighs.so of version 1.5 or later (the Python package \
     highspy has one)"
)]
pub struct HighsLoadError {
    /// The library.
    pub path: String,
    /// What is wrong with it.
    pub reason: String,
}

/// `HighsInt` of the usual builds.
type Int = i32;
type Model = *mut c_void;

symbol_table! {
    /// The functions of HiGHS's C interface that are used here.
    struct Api {
        int_size = c"Highs_getSizeofHighsInt": fn(Model) -> Int;
        version = c"Highs_version": fn() -> *const c_char;
        create = c"Highs_create": fn() -> Model;
        destroy = c"Highs_destroy": fn(Model) -> ();
        set_bool = c"Highs_setBoolOptionValue": fn(Model, *const c_char, Int) -> Int;
        set_int = c"Highs_setIntOptionValue": fn(Model, *const c_char, Int) -> Int;
        set_double = c"Highs_setDoubleOptionValue": fn(Model, *const c_char, f64) -> Int;
        // Columns, rows, entries, matrix format, sense, offset; cost, bounds of columns and rows; matrix; integrality.
        pass_mip = c"Highs_passMip": fn(
            Model, Int, Int, Int, Int, Int, f64, *const f64, *const f64, *const f64, *const f64, *const f64,
            *const Int, *const Int, *const f64, *const Int
        ) -> Int;
        set_solution = c"Highs_setSolution": fn(Model, *const f64, *const f64, *const f64, *const f64) -> Int;
        run = c"Highs_run": fn(Model) -> Int;
        model_status = c"Highs_getModelStatus": fn(Model) -> Int;
        int_info = c"Highs_getIntInfoValue": fn(Model, *const c_char, *mut Int) -> Int;
        int64_info = c"Highs_getInt64InfoValue": fn(Model, *const c_char, *mut i64) -> Int;
        double_info = c"Highs_getDoubleInfoValue": fn(Model, *const c_char, *mut f64) -> Int;
        // Values and duals of columns, then of rows.
        solution = c"Highs_getSolution": fn(Model, *mut f64, *mut f64, *mut f64, *mut f64) -> Int;
    }
}

const STATUS_ERROR: Int = -1;
const ROW_WISE: Int = 2;
const MINIMIZE: Int = 1;
const MODEL_EMPTY: Int = 6;
const MODEL_OPTIMAL: Int = 7;
const MODEL_INFEASIBLE: Int = 8;
/// Statuses of a model that a limit stopped: objective bound and target, time, iterations, unknown, solutions.
const MODEL_STOPPED: [Int; 6] = [11, 12, 13, 14, 15, 16];
const SOLUTION_FEASIBLE: Int = 2;
/// Smaller than any cost difference that matters, so that "optimal" means it.
const RELATIVE_GAP: f64 = 1e-9;

impl Highs {
    /// Loads HiGHS. The library stays loaded until the process ends, because its threads may.
    ///
    /// # Errors
    /// If the file does not load, is not HiGHS, or is a build with 64-bit integers.
    pub fn load(path: &Path) -> Result<Self, HighsLoadError> {
        let failed = |reason: String| HighsLoadError { path: path.display().to_string(), reason };
        check_whole(path).map_err(failed)?;
        // SAFETY: the caller names the library to trust; HiGHS's initialisers have no preconditions.
        let library = unsafe { Library::new(path) }.map_err(|error| failed(loader_message(&error)))?;
        // SAFETY: a library with all these names is taken to be HiGHS, and it is leaked below.
        let api = unsafe { Api::new(&library) }.map_err(|missing| failed(missing.reason))?;
        // SAFETY: the function takes a model that it does not look at.
        let int_bytes = unsafe { (api.int_size)(std::ptr::null_mut()) };
        if int_bytes as usize != size_of::<Int>() {
            return Err(failed(format!(
                "its integers have {int_bytes} bytes instead of {}",
                size_of::<Int>()
            )));
        }
        // SAFETY: the function returns a constant string.
        let version = unsafe { CStr::from_ptr((api.version)()) }.to_string_lossy().into_owned();
        std::mem::forget(library);
        Ok(Self { api, name: format!("HiGHS {version}") })
    }
}

impl Solver for Highs {
    fn name(&self) -> &str {
        &self.name
    }

    fn solve(
        &self,
        program: &Milp,
        start: Option<&[f64]>,
        limits: SolverLimits,
    ) -> Result<SolverOutcome, SolverError> {
        let session = Session::new(self);
        session.set_options(limits)?;
        session.pass(program)?;
        if let Some(start) = start.filter(|start| start.len() == program.variables.len()) {
            session.set_start(start);
        }
        session.run()?;
        session.outcome(program)
    }
}

/// One model inside HiGHS.
struct Session<'a> {
    highs: &'a Highs,
    model: Model,
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `create`, and not used after this.
        unsafe { (self.highs.api.destroy)(self.model) };
    }
}

impl<'a> Session<'a> {
    fn new(highs: &'a Highs) -> Self {
        // SAFETY: the function has no preconditions.
        Self { highs, model: unsafe { (highs.api.create)() } }
    }

    fn error(&self, reason: impl Into<String>) -> SolverError {
        SolverError { solver: self.highs.name.clone(), reason: reason.into() }
    }

    fn check(&self, status: Int, what: &str) -> Result<(), SolverError> {
        if status == STATUS_ERROR { Err(self.error(format!("{what} was refused"))) } else { Ok(()) }
    }

    fn set_options(&self, limits: SolverLimits) -> Result<(), SolverError> {
        let api = &self.highs.api;
        let nodes = Int::try_from(limits.nodes).unwrap_or(Int::MAX);
        // SAFETY: the model is alive, and option names are NUL-terminated.
        let statuses = unsafe {
            [
                (api.set_bool)(self.model, c"output_flag".as_ptr(), 0),
                // One thread, so that equal programs have equal solutions.
                (api.set_int)(self.model, c"threads".as_ptr(), 1),
                (api.set_int)(self.model, c"mip_max_nodes".as_ptr(), nodes),
                (api.set_double)(self.model, c"mip_rel_gap".as_ptr(), RELATIVE_GAP),
                (api.set_double)(self.model, c"mip_abs_gap".as_ptr(), RELATIVE_GAP),
                (api.set_double)(self.model, c"time_limit".as_ptr(), limits.time.as_secs_f64()),
            ]
        };
        statuses.into_iter().try_for_each(|status| self.check(status, "an option"))
    }

    fn pass(&self, program: &Milp) -> Result<(), SolverError> {
        let columns = program.variables.len();
        let matrix =
            Matrix::of(program).ok_or_else(|| self.error("the program is too large or malformed"))?;
        let cost: Vec<f64> = program.variables.iter().map(|variable| variable.cost).collect();
        let lower: Vec<f64> = program.variables.iter().map(|variable| variable.lower).collect();
        let upper: Vec<f64> = program.variables.iter().map(|variable| variable.upper).collect();
        let integrality: Vec<Int> =
            program.variables.iter().map(|variable| variable.is_integer.into()).collect();
        let row_lower: Vec<f64> = program.rows.iter().map(|row| row.lower).collect();
        let row_upper: Vec<f64> = program.rows.iter().map(|row| row.upper).collect();
        // SAFETY: the arrays have the lengths stated (one per column, one per row, one per entry), and `Matrix::of`
        // has checked that the counts fit and that the indices name columns. HiGHS copies everything.
        let status = unsafe {
            (self.highs.api.pass_mip)(
                self.model,
                columns as Int,
                program.rows.len() as Int,
                matrix.values.len() as Int,
                ROW_WISE,
                MINIMIZE,
                0.0,
                cost.as_ptr(),
                lower.as_ptr(),
                upper.as_ptr(),
                row_lower.as_ptr(),
                row_upper.as_ptr(),
                matrix.starts.as_ptr(),
                matrix.columns.as_ptr(),
                matrix.values.as_ptr(),
                integrality.as_ptr(),
            )
        };
        self.check(status, "the program")
    }

    /// Offers a solution to begin with. That HiGHS does not take it is no error: it is a hint.
    fn set_start(&self, values: &[f64]) {
        let none = std::ptr::null();
        // SAFETY: `values` has one value per column; HiGHS ignores arrays that are null.
        unsafe { (self.highs.api.set_solution)(self.model, values.as_ptr(), none, none, none) };
    }

    fn run(&self) -> Result<(), SolverError> {
        // SAFETY: the model is alive.
        self.check(unsafe { (self.highs.api.run)(self.model) }, "solving")
    }

    fn outcome(&self, program: &Milp) -> Result<SolverOutcome, SolverError> {
        // SAFETY: the model is alive.
        let model_status = unsafe { (self.highs.api.model_status)(self.model) };
        let has_solution = self.int_info(c"primal_solution_status") == Some(SOLUTION_FEASIBLE);
        let status = match model_status {
            MODEL_OPTIMAL => SolverStatus::Optimal,
            MODEL_EMPTY => return Ok(empty_outcome(program)),
            MODEL_INFEASIBLE => SolverStatus::Infeasible,
            status if MODEL_STOPPED.contains(&status) && has_solution => SolverStatus::Feasible,
            status if MODEL_STOPPED.contains(&status) => SolverStatus::Unknown,
            status => return Err(self.error(format!("it stopped with model status {status}"))),
        };
        let values = match status {
            SolverStatus::Optimal | SolverStatus::Feasible => self.values(program)?,
            SolverStatus::Infeasible | SolverStatus::Unknown => Vec::new(),
        };
        Ok(SolverOutcome { status, bound: self.bound(status, program, &values), values, nodes: self.nodes() })
    }

    /// No solution costs less than this.
    fn bound(&self, status: SolverStatus, program: &Milp, values: &[f64]) -> f64 {
        if status == SolverStatus::Infeasible {
            return f64::INFINITY;
        }
        if status == SolverStatus::Optimal && !program.variables.iter().any(|variable| variable.is_integer) {
            // HiGHS keeps no bound for a linear program.
            return program.objective(values);
        }
        let mut bound = f64::NEG_INFINITY;
        // SAFETY: the model is alive, the name is NUL-terminated, and the result has the type of this information.
        unsafe { (self.highs.api.double_info)(self.model, c"mip_dual_bound".as_ptr(), &raw mut bound) };
        if bound.is_nan() { f64::NEG_INFINITY } else { bound }
    }

    fn nodes(&self) -> u64 {
        let mut nodes = 0;
        // SAFETY: the model is alive, the name is NUL-terminated, and the result has the type of this information.
        unsafe { (self.highs.api.int64_info)(self.model, c"mip_node_count".as_ptr(), &raw mut nodes) };
        // -1 means that there was no search.
        u64::try_from(nodes).unwrap_or(0)
    }

    fn int_info(&self, name: &CStr) -> Option<Int> {
        let mut value = 0;
        // SAFETY: the model is alive, the name is NUL-terminated, and the result has the type of this information.
        let status = unsafe { (self.highs.api.int_info)(self.model, name.as_ptr(), &raw mut value) };
        (status != STATUS_ERROR).then_some(value)
    }

    /// The values of the variables, whole ones rounded.
    fn values(&self, program: &Milp) -> Result<Vec<f64>, SolverError> {
        let (columns, rows) = (program.variables.len(), program.rows.len());
        let (mut values, mut column_duals) = (vec![0.0; columns], vec![0.0; columns]);
        let (mut row_values, mut row_duals) = (vec![0.0; rows], vec![0.0; rows]);
        // SAFETY: the arrays have one element per column and per row of the model that was passed.
        let status = unsafe {
            (self.highs.api.solution)(
                self.model,
                values.as_mut_ptr(),
                column_duals.as_mut_ptr(),
                row_values.as_mut_ptr(),
                row_duals.as_mut_ptr(),
            )
        };
        self.check(status, "reading the solution")?;
        for (value, variable) in values.iter_mut().zip(&program.variables) {
            if variable.is_integer {
                *value = value.round();
            }
        }
        Ok(values)
    }
}

/// The outcome of a program without variables, which HiGHS does not solve: its rows are sums of nothing.
fn empty_outcome(program: &Milp) -> SolverOutcome {
    let feasible = program.rows.iter().all(|row| row.lower <= 0.0 && row.upper >= 0.0);
    let (status, bound) =
        if feasible { (SolverStatus::Optimal, 0.0) } else { (SolverStatus::Infeasible, f64::INFINITY) };
    SolverOutcome { status, values: Vec::new(), bound, nodes: 0 }
}

/// The rows' terms in compressed form.
struct Matrix {
    starts: Vec<Int>,
    columns: Vec<Int>,
    values: Vec<f64>,
}

impl Matrix {
    /// `None` if a count does not fit HiGHS's integers or a row names a variable that does not exist.
    fn of(program: &Milp) -> Option<Self> {
        let column_count = Int::try_from(program.variables.len()).ok()?;
        Int::try_from(program.rows.len()).ok()?;
        let mut matrix = Self { starts: vec![0], columns: Vec::new(), values: Vec::new() };
        for row in &program.rows {
            for &(variable, factor) in &row.terms {
                matrix.columns.push(Int::try_from(variable).ok().filter(|&column| column < column_count)?);
                matrix.values.push(factor);
            }
            matrix.starts.push(Int::try_from(matrix.values.len()).ok()?);
        }
        Some(matrix)
    }
}

#[cfg(test)]
mod tests;
