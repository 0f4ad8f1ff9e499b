//! Stage "tune", second half: times of kernels, measured on this machine or looked up.
//!
//! The kernels of the plan are timed under several schedules each, and beside library calls that compute the same where the
//! options name libraries. Every time is kept in the tuning database, under a key of the kernel's signature, the target and
//! machine, the compiler, and the label of the implementation.

use super::budget::{Budget, Deadline, Phase};
use super::select::{FASTER, fastest};
use crate::plan::backend::{Meter, Toolchain};
use crate::plan::candidates::CandidateColumn;
use crate::plan::context::PlanContext;
use crate::plan::kernel::{KernelDesign, Measured, MeasuredCall};
use crate::plan::passes;
use crate::plan::planned::EndToEndTime;
use crate::{Error, Library, Options};
use orch_files::open_regular;
use orch_plan::blp::Choice;
use orch_tune::{Database, Key, Records};
use std::collections::BTreeSet;
use std::io::BufReader;
use std::path::Path;
use std::rc::Rc;

/// Columns of a choice whose schedules are made together.
const TOGETHER: usize = 16;

/// What builds and times kernels.
#[derive(Clone, Copy)]
pub struct TimingTools<'a> {
    /// Names the compiler, on which times depend.
    pub toolchain: &'a dyn Toolchain,
    /// Times kernels.
    pub meter: &'a dyn Meter,
}

/// Times kernels on this machine, or looks up the times that an earlier compilation measured.
pub struct Timer<'a> {
    ctx: PlanContext<'a>,
    tools: TimingTools<'a>,
    columns: &'a [CandidateColumn],
    signatures: &'a [String],
    options: &'a Options,
    source: TimeSource,
    budget: Rc<Budget>,
    kernels_until: Deadline,
}

/// The fastest schedules of a column's kernels.
#[derive(Default)]
struct Fastest {
    /// Of each kernel.
    schedules: Vec<String>,
    /// The library call that is faster than those of a single kernel.
    call: Option<MeasuredCall>,
    /// Of all kernels together.
    time_us: f64,
}

/// Where times come from.
enum TimeSource {
    /// This machine. Without the database, which may not be usable, everything is measured anew.
    Here { database: Option<Database> },
    /// A file that another machine exported.
    Records(Records),
}

impl<'a> Timer<'a> {
    /// A timer of candidates, within a budget; `signatures` are those of the kernels.
    ///
    /// # Errors
    /// If the options name a file of records that cannot be read, or has lines that are none.
    pub fn new(
        ctx: PlanContext<'a>,
        tools: TimingTools<'a>,
        columns: &'a [CandidateColumn],
        signatures: &'a [String],
        budget: Rc<Budget>,
        options: &'a Options,
    ) -> Result<Self, Error> {
        let source = match &options.records {
            Some(path) => TimeSource::Records(read_records(path)?),
            None => {
                let database = Database::open(&options.cache_dir).ok();
                TimeSource::Here { database }
            }
        };
        let kernels_until = budget.deadline(Phase::Kernels);
        Ok(Self { ctx, tools, columns, signatures, options, source, budget, kernels_until })
    }

    /// Times the kernels of some columns, in their order: those of templates under the preferred schedules, those of µGraphs under
    /// the fastest ones, because numbers of blocks may suit one of them only, and several of them together.
    ///
    /// # Errors
    /// If the work is cancelled, or kernels do not build or load.
    pub fn measure(&self, wanted: &[usize]) -> Result<Vec<Option<f64>>, Error> {
        let is_substitute = |column: usize| self.columns[column].substitute.is_some();
        let mut times = Vec::with_capacity(wanted.len());
        for alike in wanted.chunk_by(|&a, &b| is_substitute(a) == is_substitute(b)) {
            times.extend(match is_substitute(alike[0]) {
                true => self.measure_substitutes(alike)?,
                false => self.measure_preferred(alike)?,
            });
        }
        let untimed = wanted.iter().zip(&times).filter(|(_, time)| time.is_none()).map(|(&column, _)| column);
        self.leave_out(Phase::Kernels, untimed, self.kernels_until);
        Ok(times)
    }

    /// Times the kernels of columns under the preferred schedules.
    fn measure_preferred(&self, columns: &[usize]) -> Result<Vec<Option<f64>>, Error> {
        let keys: Vec<Option<Key>> = columns.iter().map(|&column| self.key(column, None)).collect();
        let run = |numbers: &[usize]| {
            let columns: Vec<usize> = numbers.iter().map(|&number| columns[number]).collect();
            self.run(&columns)
        };
        self.known_or_timed(&keys, self.kernels_until, run)
    }

    /// Times the kernels of columns of µGraphs under the fastest schedules, where they have several.
    fn measure_substitutes(&self, columns: &[usize]) -> Result<Vec<Option<f64>>, Error> {
        let fastest = self.fastest(columns, self.kernels_until)?;
        let mut times: Vec<Option<f64>> = fastest.into_iter().map(|fastest| Some(fastest?.time_us)).collect();
        let others: Vec<usize> = (0..columns.len()).filter(|&number| times[number].is_none()).collect();
        let columns: Vec<usize> = others.iter().map(|&number| columns[number]).collect();
        for (number, time) in others.into_iter().zip(self.measure_preferred(&columns)?) {
            times[number] = time;
        }
        Ok(times)
    }

    /// Times the kernels of a choice under several schedules each, and notes the fastest ones.
    ///
    /// # Errors
    /// As [`Self::measure`].
    pub fn schedules(&self, choice: &Choice, measured: &mut Measured) -> Result<(), Error> {
        let deadline = self.budget.deadline(Phase::Schedules);
        let mut kernels = BTreeSet::new();
        let mut columns: Vec<usize> = choice.columns.iter().map(|id| id.index()).collect();
        columns.retain(|&column| self.columns[column].kernel.is_some_and(|kernel| kernels.insert(kernel)));
        columns.sort_by(|&a, &b| self.columns[b].cost_us.total_cmp(&self.columns[a].cost_us));
        for some in columns.chunks(TOGETHER) {
            for (&column, fastest) in some.iter().zip(self.fastest(some, deadline)?) {
                let Some((kernel, fastest)) = self.columns[column].kernel.zip(fastest) else { continue };
                let signature = &self.signatures[kernel];
                measured.times.insert(signature.clone(), fastest.time_us);
                measured.schedules.insert(signature.clone(), fastest.schedules);
                measured.calls.extend(fastest.call.map(|call| (signature.clone(), call)));
            }
        }
        Ok(())
    }

    /// The end-to-end time of a plan if it is known, and its key; `None` of a plan without kernels. It is less than the sum of its
    /// kernels' times: kernels of a GPU overlap.
    pub fn end_to_end(&self, choice: &Choice, measured: &Measured) -> Option<EndToEndTime> {
        let mut program = String::new();
        for id in &choice.columns {
            let column = &self.columns[id.index()];
            let Some(kernel) = column.kernel else {
                // A host routine, or what is evaluated when compiling.
                let PlanContext { graph, units, signatures, .. } = self.ctx;
                let nodes = units.primitives(graph, &column.candidate.nodes);
                program += &signatures.signature(graph, &nodes, &column.candidate.outputs).text;
                program.push('\n');
                continue;
            };
            let signature = &self.signatures[kernel];
            let schedules = measured.schedules.get(signature).map(|all| all.join("; ")).unwrap_or_default();
            let call = measured.calls.get(signature).map(|call| call.release.clone()).unwrap_or_default();
            program += &format!("{signature}\n{schedules} {call}\n");
        }
        let is_kernel = |column: &usize| self.columns[*column].kernel.is_some();
        let first = choice.columns.iter().map(|id| id.index()).find(is_kernel)?;
        let flags = format!("time of a plan, {}", self.ctx.planner.info().precision.name());
        let key = Key { program, flags, ..self.key(first, None)? };
        Some(EndToEndTime { time_us: self.known(&key), key })
    }

    /// A time from the records or the database.
    fn known(&self, key: &Key) -> Option<f64> {
        match &self.source {
            TimeSource::Here { database } => database.as_ref()?.get(key),
            TimeSource::Records(records) => records.time(key),
        }
    }

    /// The fastest schedules of the kernels of some columns; none where there is no choice, or a kernel is not timed.
    fn fastest(&self, columns: &[usize], deadline: Deadline) -> Result<Vec<Option<Fastest>>, Error> {
        // Schedules are not even made once nothing is timed any more.
        if self.budget.fits_no_kernel(deadline) {
            self.leave_out(Phase::Schedules, columns.iter().copied(), deadline);
            return Ok(columns.iter().map(|_| None).collect());
        }
        let of_columns: Vec<(&CandidateColumn, Vec<(Library, String)>)> =
            columns.iter().map(|&column| (&self.columns[column], self.releases(column))).collect();
        let designs = self.ctx.schedules(&of_columns, self.options)?;
        let (mut keys, mut kernels) = (Vec::new(), Vec::new());
        for (&column, of_column) in columns.iter().zip(&designs) {
            for (number, design) in
                of_column.iter().enumerate().flat_map(|(n, all)| all.iter().map(move |d| (n, d)))
            {
                let label = design.label();
                let name = if number == 0 { label.to_owned() } else { format!("kernel {number}, {label}") };
                keys.push(self.key(column, Some(&name)));
                kernels.push(design);
            }
        }
        let run = |numbers: &[usize]| {
            let alone = |&number: &usize| vec![kernels[number].clone()];
            let kernels: Vec<Vec<KernelDesign>> = numbers.iter().map(alone).collect();
            self.times(&kernels)
        };
        let mut times = self.known_or_timed(&keys, deadline, run)?.into_iter();
        let mut all = Vec::with_capacity(columns.len());
        let mut chains = Vec::new();
        for (&column, of_column) in columns.iter().zip(&designs) {
            let mut sum = (!of_column.is_empty()).then(Fastest::default);
            let (mut chain, mut is_whole) = (Vec::new(), true);
            for designs in of_column {
                let times: Vec<Option<f64>> = times.by_ref().take(designs.len()).collect();
                is_whole &= !times.contains(&None);
                let timed = sum.take().zip(fastest_implementation(designs, &times));
                sum = timed.map(|(mut sum, (design, time_us, call))| {
                    sum.schedules.push(design.design.schedule.clone());
                    chain.push(design.clone());
                    Fastest { time_us: sum.time_us + time_us, call, ..sum }
                });
            }
            if !is_whole {
                self.leave_out(Phase::Schedules, [column].into_iter(), deadline);
            }
            if sum.is_some() && chain.len() > 1 {
                chains.push((all.len(), column, chain));
            }
            all.push(sum);
        }
        self.time_chains(&chains, &mut all, deadline)?;
        Ok(all)
    }

    /// Times kernels that follow one another together: one starts while the one before it ends.
    fn time_chains(
        &self,
        chains: &[(usize, usize, Vec<KernelDesign>)],
        all: &mut [Option<Fastest>],
        deadline: Deadline,
    ) -> Result<(), Error> {
        let key = |(_, column, chain): &(usize, usize, Vec<KernelDesign>)| {
            let labels: Vec<&str> = chain.iter().map(KernelDesign::label).collect();
            self.key(*column, Some(&format!("chain: {}", labels.join("; "))))
        };
        let keys: Vec<Option<Key>> = chains.iter().map(key).collect();
        let run = |numbers: &[usize]| {
            let chains: Vec<Vec<KernelDesign>> =
                numbers.iter().map(|&number| chains[number].2.clone()).collect();
            self.times(&chains)
        };
        for ((at, ..), time) in chains.iter().zip(self.known_or_timed(&keys, deadline, run)?) {
            if let (Some(fastest), Some(time_us)) = (&mut all[*at], time) {
                fastest.time_us = time_us;
            }
        }
        Ok(())
    }

    /// Notes that the kernels of columns were left out, if that is because time is up.
    fn leave_out(&self, phase: Phase, columns: impl Iterator<Item = usize>, deadline: Deadline) {
        if matches!(self.source, TimeSource::Here { .. }) && self.budget.fits_no_kernel(deadline) {
            columns
                .filter_map(|column| self.columns[column].kernel)
                .for_each(|kernel| self.budget.leave_out(phase, kernel));
        }
    }

    /// Times by key, from the records or the database; what is not there is timed by `run`, some at a time, until the
    /// deadline.
    fn known_or_timed(
        &self,
        keys: &[Option<Key>],
        deadline: Deadline,
        run: impl Fn(&[usize]) -> Result<Vec<Option<f64>>, Error>,
    ) -> Result<Vec<Option<f64>>, Error> {
        let mut times: Vec<Option<f64>> = keys.iter().map(|key| self.known(key.as_ref()?)).collect();
        let TimeSource::Here { database } = &self.source else { return Ok(times) };
        let missing: Vec<usize> = (0..keys.len()).filter(|&number| times[number].is_none()).collect();
        let run_and_keep = |some: &[usize]| {
            let times = run(some)?;
            for (&number, &time) in some.iter().zip(&times) {
                if let (Some(database), Some(key), Some(time)) = (database, &keys[number], time) {
                    // A figure that cannot be kept is measured again.
                    let _ = database.put(key, &time);
                }
            }
            Ok(times)
        };
        let timed = self.budget.in_batches(deadline, &missing, run_and_keep)?;
        missing.into_iter().zip(timed).for_each(|(number, time)| times[number] = time);
        Ok(times)
    }

    /// The libraries of the options whose calls may replace a column's kernel, with releases: those that can be loaded here, or
    /// those that were fastest on the machine of the records.
    fn releases(&self, column: usize) -> Vec<(Library, String)> {
        let release = |library: Library| match &self.source {
            TimeSource::Here { .. } => self.tools.meter.library(library).ok(),
            TimeSource::Records(records) => {
                let any_release = format!("{} ", library.label());
                let release = records.fastest_continuation(&self.key(column, Some(&any_release))?)?;
                Some(any_release + release)
            }
        };
        let asked = Library::ALL.into_iter().filter(|library| self.options.libraries.contains(library));
        asked.filter_map(|library| Some((library, release(library)?))).collect()
    }

    /// The key of the time of a column's kernel: of the implementation with this label, or with the preferred schedule.
    fn key(&self, column: usize, label: Option<&str>) -> Option<Key> {
        let info = self.ctx.planner.info();
        // Records are used whatever compiler they are of, and there may be none here.
        let compiler = self.tools.toolchain.compiler().unwrap_or_default();
        Some(Key {
            program: self.signatures[self.columns[column].kernel?].clone(),
            target: info.name.clone(),
            machine: info.machine.clone(),
            compiler: format!("{compiler} {}", env!("ORCHESTRION_SOURCES")),
            flags: format!(
                "time of a kernel, {}{}",
                self.ctx.planner.info().precision.name(),
                label.map_or(String::new(), |label| format!(", {label}"))
            ),
        })
    }

    /// Times of chains of kernels after the passes: of the code that a plan would run.
    fn times(&self, chains: &[Vec<KernelDesign>]) -> Result<Vec<Option<f64>>, Error> {
        let chains = passes::run_on_timed(chains, self.options)?;
        self.tools.meter.times(&chains, self.options)
    }

    /// Builds and times the kernels of columns, in turns; those of one column follow one another.
    fn run(&self, columns: &[usize]) -> Result<Vec<Option<f64>>, Error> {
        let columns: Vec<&CandidateColumn> = columns.iter().map(|&column| &self.columns[column]).collect();
        let designs = self.ctx.designs(&columns, self.options)?;
        let is_served: Vec<bool> = designs.iter().map(Option::is_some).collect();
        let served: Vec<Vec<KernelDesign>> = designs.into_iter().flatten().collect();
        let mut times = self.times(&served)?.into_iter();
        let time = |is_served: bool| if is_served { times.next().flatten() } else { None };
        Ok(is_served.into_iter().map(time).collect())
    }
}

/// The fastest of a kernel's designs and its time. If that is a library call, it is given beside the fastest kernel that is
/// passed the same as the call.
fn fastest_implementation<'a>(
    designs: &'a [KernelDesign],
    times: &[Option<f64>],
) -> Option<(&'a KernelDesign, f64, Option<MeasuredCall>)> {
    let own = designs.iter().position(|design| design.call.is_some()).unwrap_or(designs.len());
    let (fastest_own, own_us) = fastest(&times[..own])?;
    let calls = designs[own..].iter().zip(&times[own..]);
    let calls = calls.filter_map(|(design, time)| Some((design, design.call.as_ref()?, (*time)?)));
    let called = calls.min_by(|a, b| a.2.total_cmp(&b.2));
    let Some((called, call, time)) = called.filter(|(_, _, time)| *time <= FASTER * own_us) else {
        return Some((&designs[fastest_own], own_us, None));
    };
    let bindings = |design: &KernelDesign| design.design.kernel.bindings == called.design.kernel.bindings;
    let beside: Vec<Option<f64>> =
        designs[..own].iter().zip(times).map(|(design, time)| time.filter(|_| bindings(design))).collect();
    let (design, own_us) = fastest(&beside).map_or((called, own_us), |(number, us)| (&designs[number], us));
    let (library, release) = (call.computation.library(), call.release.clone());
    Some((design, time, Some(MeasuredCall { library, release, own_us })))
}

/// Reads an exported file.
fn read_records(path: &Path) -> Result<Records, Error> {
    let failed = |source| Error::File { path: path.to_owned(), source };
    let mut input = BufReader::new(open_regular(path).map_err(failed)?);
    let (records, report) = Records::read(&mut input).map_err(failed)?;
    match &report.rejected[..] {
        [] => Ok(records),
        [first, ..] => Err(Error::Input(format!(
            "{}: line {} is not a measurement: {}; `orchestrion cache export` writes such files",
            path.display(),
            first.line,
            first.reason
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::candidates::{candidates, costs_us};
    use crate::plan::choose::choose;
    use crate::plan::implement::implement;
    use crate::plan::implementation::Chosen;
    use crate::search::substitutes::add_substitutes;
    use crate::testing::{LORA, with_context};
    use orch_plan::blp::ColumnId;

    #[test]
    fn a_kernel_of_a_mugraph_runs_as_its_fastest_schedule_does() {
        let folder = orch_files::Scratch::new().unwrap();
        // Measurements of another machine, of which there are none, have more alternatives looked at.
        let options = Options {
            cache_dir: folder.path().to_owned(),
            target: Some("cuda:sm_90".to_owned()),
            precision: crate::Precision::F16,
            records: Some("none".into()),
            ..Options::default()
        };
        with_context(LORA, &options, |ctx, backend| {
            let mut found = candidates(ctx, &options).unwrap();
            let all: Vec<ColumnId> = (0..found.columns.len()).map(|column| ColumnId(column as u32)).collect();
            add_substitutes(&mut found, ctx, &all, &options).unwrap();
            let columns = &found.columns;
            let with_choice = |column: &CandidateColumn| {
                let designs = ctx.schedules(&[(column, Vec::new())], &options).unwrap().remove(0);
                (column.substitute.is_some() && designs.len() == 1 && designs[0].len() == 3)
                    .then_some(designs)
            };
            let (column, designs) = columns
                .iter()
                .enumerate()
                .find_map(|(at, column)| Some((at, with_choice(column)?)))
                .expect("one of 64 blocks");
            let names: Vec<&str> = designs[0].iter().map(|kernel| kernel.design.schedule.as_str()).collect();
            assert!(
                names[0].ends_with("cluster=2 tma_operands") && names[1].ends_with("cluster=1"),
                "{names:?}"
            );

            let database = Database::open(&options.cache_dir).unwrap();
            let source = TimeSource::Here { database: Some(database) };
            let budget = Rc::new(Budget::new(&options));
            let timer = Timer {
                ctx,
                tools: TimingTools { toolchain: backend, meter: backend },
                columns,
                signatures: &found.signatures,
                options: &options,
                source,
                kernels_until: budget.deadline(Phase::Kernels),
                budget,
            };
            let times = [9.0, 6.0, 7.0];
            if let TimeSource::Here { database: Some(database) } = &timer.source {
                for (name, time) in names.iter().zip(times) {
                    database.put(&timer.key(column, Some(name)).unwrap(), &time).unwrap();
                }
            }
            assert_eq!(timer.measure(&[column]).unwrap(), [Some(6.0)]);
            let choice = Choice {
                columns: vec![ColumnId(column as u32)],
                ..choose(ctx.units, columns, &costs_us(columns)).unwrap()
            };
            let mut measured = Measured::default();
            timer.schedules(&choice, &mut measured).unwrap();
            let signature = &found.signatures[columns[column].kernel.unwrap()];
            assert_eq!(measured.schedules[signature], [names[1]]);

            // The plan's kernel is that one; a schedule that is not there any more counts as the preferred one.
            for (noted, taken) in [(names[1], names[1]), ("gone", names[0])] {
                measured.schedules.insert(signature.clone(), vec![noted.to_owned()]);
                let CandidateColumn { candidate, substitute, .. } = &columns[column];
                let chosen = Chosen { candidate: candidate.clone(), substitute: substitute.clone() };
                let made = implement(ctx, vec![chosen], &measured, &options).unwrap();
                let made = made.unwrap_or_else(|unserved| panic!("{unserved:?}"));
                assert_eq!(made.kernels[0].design.schedule, taken);
            }
        });
    }
}
