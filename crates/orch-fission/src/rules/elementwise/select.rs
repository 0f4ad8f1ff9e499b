//! Where: `y = condition ? x : z`.

use crate::registry::{Applied, one};
use crate::{Call, Context};

pub(super) fn select(ctx: &mut Context<'_>, call: &Call<'_>) -> Applied {
    one(ctx.select(call.tensor(0)?, call.tensor(1)?, call.tensor(2)?)?)
}
