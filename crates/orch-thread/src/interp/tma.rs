//! TMA loads in the interpreter: what they copy, and the full and empty mbarriers that count them.

use crate::cta::{Location, SWIZZLE_ALIGNMENT, SWIZZLE_ROW, swizzled};
use crate::interp::in_flight::CopyInFlight;
use crate::interp::{ExecError, ThreadInterpreter};
use crate::program::ThreadProgram;
use crate::tma::TensorMapId;
use orch_compute::expr::ExprId;
use orch_compute::expr::scalar::Number;

/// A counter of TMA loads that arrive.
pub(crate) struct FullBarrier {
    /// The turn that has begun.
    phase: i64,
    /// TMA loads that each turn waits for.
    loads: usize,
    /// Those of the turn that have been started.
    copies: Vec<CopyInFlight>,
    /// The time of the pass of an empty mbarrier that the last of them waited for.
    awaited: u32,
}

/// The empty mbarriers of a task.
pub(crate) struct EmptyBarriers {
    /// Of each the turn that comes next, and the time of its last pass.
    empty: Vec<(i64, u32)>,
    /// The last pass that TMA loads wait for.
    awaited: u32,
    /// The last pass of which all threads know that all have come.
    open: u32,
}

impl EmptyBarriers {
    pub(crate) fn of(program: &ThreadProgram) -> EmptyBarriers {
        EmptyBarriers { empty: vec![(0, 0); program.mbarriers.empty], awaited: 0, open: 0 }
    }

    /// The time of the last pass that TMA loads wait for.
    pub(crate) fn awaited(&self) -> u32 {
        self.awaited
    }

    /// All threads come to an empty mbarrier.
    pub(crate) fn pass(&mut self, mbarrier: i64, phase: i64, time: u32) -> Result<(), ExecError> {
        let open = self.open;
        let (next, last) = self.mbarrier(mbarrier)?;
        if phase != *next {
            return Err(ExecError::divergence(&format!(
                "phase {phase} of an mbarrier is passed in its phase {next}"
            )));
        }
        if *last > open {
            return Err(ExecError::divergence(
                "an mbarrier is passed again before loads that waited for it were awaited",
            ));
        }
        (*next, *last) = (phase + 1, time);
        Ok(())
    }

    /// TMA loads wait for an empty mbarrier; gives when it was passed.
    pub(crate) fn wait(&mut self, mbarrier: i64, phase: i64) -> Result<u32, ExecError> {
        let (next, last) = self.mbarrier(mbarrier)?;
        if phase != *next - 1 {
            return Err(ExecError::divergence(&format!(
                "phase {phase} of an mbarrier is awaited before its phase {next}"
            )));
        }
        let last = *last;
        self.awaited = self.awaited.max(last);
        Ok(last)
    }

    /// All threads have awaited a TMA load that waited for the passes up to one.
    pub(crate) fn open(&mut self, awaited: u32) {
        self.open = self.open.max(awaited);
    }

    fn mbarrier(&mut self, number: i64) -> Result<&mut (i64, u32), ExecError> {
        let count = self.empty.len();
        let mbarrier = usize::try_from(number).ok().and_then(|number| self.empty.get_mut(number));
        mbarrier.ok_or_else(|| {
            ExecError::divergence(&format!("there is no mbarrier {number}, there are {count}"))
        })
    }
}

impl FullBarrier {
    /// The slots of a task of a program.
    pub(crate) fn all(program: &ThreadProgram) -> Vec<FullBarrier> {
        let mbarrier =
            |_| FullBarrier { phase: 0, loads: program.mbarriers.loads, copies: Vec::new(), awaited: 0 };
        (0..program.mbarriers.full).map(mbarrier).collect()
    }

    /// Counts a TMA load that waits for the passes of empty mbarriers up to one.
    pub(crate) fn add(&mut self, copy: CopyInFlight, awaited: u32) -> Result<(), ExecError> {
        if self.copies.len() == self.loads {
            return Err(ExecError::divergence(
                "an mbarrier is given a box of its next phase before this one was awaited",
            ));
        }
        self.copies.push(copy);
        self.awaited = awaited;
        Ok(())
    }

    /// Ends a phase, whose TMA loads arrive; gives the passes of empty mbarriers that they waited for, too.
    pub(crate) fn end_phase(&mut self, phase: i64) -> Result<(Vec<CopyInFlight>, u32), ExecError> {
        if phase != self.phase {
            return Err(ExecError::divergence(&format!(
                "phase {phase} of an mbarrier is awaited in its phase {}",
                self.phase
            )));
        }
        if self.copies.len() < self.loads {
            return Err(ExecError::divergence("an mbarrier is awaited before all of its loads were started"));
        }
        self.phase += 1;
        Ok((std::mem::take(&mut self.copies), self.awaited))
    }
}

/// The slot of this number.
pub(crate) fn full_at(mbarriers: &mut [FullBarrier], number: i64) -> Result<&mut FullBarrier, ExecError> {
    let count = mbarriers.len();
    let mbarrier = usize::try_from(number).ok().and_then(|number| mbarriers.get_mut(number));
    mbarrier
        .ok_or_else(|| ExecError::divergence(&format!("there is no mbarrier {number}, there are {count}")))
}

impl ThreadInterpreter<'_> {
    /// Starts copying a TMA load.
    pub(crate) fn start_tma(
        &mut self,
        to: Location,
        tensor_map: TensorMapId,
        at: &[ExprId],
    ) -> Result<CopyInFlight, ExecError> {
        let offset = self.eval_index(to.offset)?;
        if offset % SWIZZLE_ALIGNMENT as i64 != 0 {
            return Err(ExecError::divergence("a box does not start at a multiple of 1024 bytes"));
        }
        let first: Result<Vec<i64>, ExecError> = at.iter().map(|&at| self.eval_index(at)).collect();
        let (first, tensor_map) = (first?, &self.program.tensor_maps[tensor_map.index()]);
        let mut values = vec![Number::Float(0.0); tensor_map.tile_elems()];
        for line in 0..tensor_map.rows {
            for within in 0..SWIZZLE_ROW {
                let mut place = first.clone();
                place[0] += within as i64;
                place[1] += line as i64;
                if let Some(from) = tensor_map.place(&place) {
                    self.report.loads += 1;
                    values[swizzled(tensor_map.rows, line, within)] =
                        self.memory.load(tensor_map.buffer, from)?;
                }
            }
        }
        for at in offset..offset + values.len() as i64 {
            self.memory.start_tma(to.buffer, at)?;
        }
        Ok(CopyInFlight { buffer: to.buffer, offset, values })
    }

    /// Writes TMA loads that have arrived.
    pub(crate) fn finish_loads(&mut self, copies: Vec<CopyInFlight>) -> Result<(), ExecError> {
        for CopyInFlight { buffer, offset, values } in copies {
            for (at, value) in (offset..).zip(values) {
                self.memory.finish_tma(buffer, at, value)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use crate::{BufferData, ExecError, ExecOptions, interpret, parse_thread, validate_thread};
    use orch_ir::{DType, Tensor};

    /// TMA loads of 64 lines of an array of 60 lines of 128 elements, `0, 1, 2, ..`.
    const HEADER: &str = "program k, 2 tasks task: i64 [0..=1]\n  \
        cta 64 threads thread: i64 [0..=63], clusters of 2\n  input x: f16[8192]\n  output y: f32[128]\n  \
        shared s: f16[8256]\n  tensor_map v: x[512], extents 128 60, strides 128, 64 rows\n  mbarriers 2 full of 1 loads\n";
    const COPY: &str = "  tma_load s[0], v[64, (task * 8)], 0\n";
    const STORE: &str = "  y[((task * 64) + thread)] = f32(s[((thread * 64) + ((thread % 8) * 8))])\n";

    fn result(body: &str) -> Result<Vec<f64>, ExecError> {
        result_with(0, body)
    }

    /// The same with so many empty mbarriers.
    fn result_with(empty: usize, body: &str) -> Result<Vec<f64>, ExecError> {
        let mbarriers =
            if empty > 0 { format!("of 1 loads, {empty} empty") } else { "of 1 loads".to_owned() };
        let header = HEADER.replace("of 1 loads", &mbarriers);
        let program =
            parse_thread(&format!("{header}{{\n{body}}}\n")).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(validate_thread(&program), Vec::<String>::new());
        let printed = program.to_string();
        assert_eq!(parse_thread(&printed).unwrap().to_string(), printed);
        let x: Vec<f64> = (0..8192).map(|at| f64::from(at / 128)).collect();
        let x = BufferData::from_tensor(&Tensor::from_f64(DType::F16, [x.len()], &x));
        let mut buffers = [x, BufferData::zeros(DType::F32, 128)];
        interpret(&program, &mut buffers, &ExecOptions::default())?;
        Ok(buffers[1].to_tensor([128]).unwrap().to_f64())
    }

    /// The first elements of the lines of each CTA's tile: those after the last line are zero.
    fn expected() -> Vec<f64> {
        let line = |task: usize, line: usize| if 8 * task + line < 60 { 4 + 8 * task + line } else { 0 };
        (0..128).map(|at| line(at / 64, at % 64) as f64).collect()
    }

    #[test]
    fn boxes_arrive_swizzled_with_zeros_outside() {
        assert_eq!(result(&format!("{COPY}  mbarrier_wait_full 0, 0\n{STORE}")).unwrap(), expected());
        // A slot is used again once its turn is awaited, and its memory once all have read it.
        let again = format!(
            "{COPY}  mbarrier_wait_full 0, 0\n  let first: f16 = s[thread]\n  barrier\n{COPY}  mbarrier_wait_full 0, 1\n{STORE}"
        );
        assert_eq!(result(&again).unwrap(), expected());
    }

    #[test]
    fn what_is_not_ordered_is_an_error() {
        let read = "  let first: f16 = s[thread]\n";
        for (body, problem) in [
            (format!("{COPY}{STORE}  mbarrier_wait_full 0, 0\n"), "also accessed by"),
            (
                format!("{COPY}  mbarrier_wait_full 0, 0\n{read}{COPY}  mbarrier_wait_full 0, 1\n"),
                "also accessed by",
            ),
            (
                format!("{COPY}  mbarrier_wait_full 0, 1\n"),
                "phase 1 of an mbarrier is awaited in its phase 0",
            ),
            (COPY.to_owned() + &COPY.replace("s[0]", "s[4096]"), "before this one was awaited"),
            ("  mbarrier_wait_full 1, 0\n".to_owned(), "before all of its loads were started"),
            (COPY.to_owned(), "before its copies are waited for"),
            (COPY.replace(", 0\n", ", 2\n"), "there is no mbarrier 2"),
            (COPY.replace("s[0]", "s[64]"), "does not start at a multiple of 1024 bytes"),
            (COPY.replace("s[0]", "s[8192]"), "out of bounds, the buffer has 8256 elements"),
            (format!("  if (thread < 32) {{\n{COPY}  }}\n"), "some threads do not come"),
        ] {
            let error = result(&body).unwrap_err().to_string();
            assert!(error.contains(problem), "{body}: {error}");
        }
    }

    #[test]
    fn boxes_overwrite_what_was_read_before_a_gate() {
        let read = format!("{COPY}  mbarrier_wait_full 0, 0\n  let first: f16 = s[thread]\n");
        let again = format!("{COPY}  mbarrier_wait_full 0, 1\n");
        let mbarrier = "  mbarrier_arrive_empty 0, 0\n  mbarrier_wait_empty 0, 0\n";
        assert_eq!(result_with(1, &format!("{read}{mbarrier}{again}{STORE}")).unwrap(), expected());
        // An empty mbarrier is passed again once a TMA load that waited for it was awaited.
        let twice = format!("{read}{mbarrier}{again}  mbarrier_arrive_empty 0, 1\n{STORE}");
        assert_eq!(result_with(1, &twice).unwrap(), expected());
        // Another empty mbarrier may be passed meanwhile; what is read before that one only is not known to have been.
        let late =
            "  mbarrier_arrive_empty 0, 0\n  let second: f16 = s[thread]\n  mbarrier_arrive_empty 1, 0\n";
        let both = format!("{read}{late}  mbarrier_wait_empty 1, 0\n{again}{STORE}");
        assert_eq!(result_with(2, &both).unwrap(), expected());
        for (body, problem) in [
            (format!("{read}  mbarrier_arrive_empty 0, 0\n{again}"), "also accessed by"),
            (format!("{read}{late}  mbarrier_wait_empty 0, 0\n{again}"), "also accessed by"),
            (
                format!("{read}{mbarrier}  mbarrier_arrive_empty 0, 1\n{again}"),
                "before loads that waited for it were awaited",
            ),
            ("  mbarrier_arrive_empty 0, 1\n".to_owned(), "phase 1 of an mbarrier is passed in its phase 0"),
            (
                "  mbarrier_wait_empty 0, 0\n".to_owned(),
                "phase 0 of an mbarrier is awaited before its phase 0",
            ),
            ("  mbarrier_arrive_empty 2, 0\n".to_owned(), "there is no mbarrier 2, there are 2"),
            (format!("  if (thread < 32) {{\n{mbarrier}  }}\n"), "some threads do not come"),
            // What threads write themselves is not ordered.
            (
                format!("{read}  s[thread] = first\n{mbarrier}  let other: f16 = s[(63 - thread)]\n"),
                "also accessed by",
            ),
            (format!("{read}  barrier\n  s[thread] = first\n{mbarrier}{again}"), "also accessed by"),
        ] {
            let error = result_with(2, &body).unwrap_err().to_string();
            assert!(error.contains(problem), "{body}: {error}");
        }
        let program = parse_thread(&format!("{HEADER}{{\n{mbarrier}}}\n")).unwrap();
        assert!(validate_thread(&program).join("; ").contains("there are no empty to pass"));
    }

    #[test]
    fn views_are_the_hardwares() {
        let problems = |header: &str, body: &str| {
            let program = parse_thread(&format!("{header}{{\n{body}}}\n"));
            validate_thread(&program.unwrap_or_else(|error| panic!("{error}"))).join("; ")
        };
        for (from, to, problem) in [
            ("x: f16", "x: f32", "of 16-bit elements"),
            ("x[512]", "x[511]", "at multiples of 16 bytes"),
            ("strides 128", "strides 132", "at multiples of 16 bytes"),
            ("extents 128 60", "extents 128 61", "ends outside of the 8192 elements of x"),
            ("extents 128 60", "extents 128 0", "extents [128, 0]"),
            ("strides 128", "strides 128 128", "2 extents and 2 strides"),
            ("64 rows", "257 rows", "257 rows"),
            ("mbarriers 2 full of 1", "mbarriers 2 full of 0", "2 full mbarriers of 0 loads"),
        ] {
            let found = problems(&HEADER.replace(from, to), "");
            assert!(found.contains(problem), "{to}: {found}");
        }
        let without = HEADER.replace("  mbarriers 2 full of 1 loads\n", "");
        assert!(problems(&without, "  mbarrier_wait_full 0, 0\n").contains("no mbarriers to await"));
        assert!(problems(&without, COPY).contains("counted by an mbarrier"));
        let flat = COPY.replace("[64, (task * 8)]", "[64]");
        assert!(problems(HEADER, &flat).contains("as many coordinates as its tensor_map"));
        let real = COPY.replace("(task * 8)", "f32(task)");
        assert!(problems(HEADER, &real).contains("an index is f32"));
        assert!(problems(HEADER, "  grid_dependency_wait\n").is_empty());
        let early = problems(HEADER, &format!("{COPY}  grid_dependency_wait\n  mbarrier_wait_full 0, 0\n"));
        assert!(early.contains("touched before the kernels that write it are awaited"), "{early}");
    }
}
