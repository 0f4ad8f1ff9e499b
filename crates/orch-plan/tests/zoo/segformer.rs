//! Segformer-B0 at 512 x 512 with the published softmax fission (exponential, a column of ones beside the values,
//! division after the product): 672 primitives.

use super::net::{Conv, Net, T};
use orch_plan::dag::Dag;

const WIDTHS: [usize; 4] = [32, 64, 160, 256];
const HEADS: [usize; 4] = [1, 2, 5, 8];
const REDUCTIONS: [usize; 4] = [8, 4, 2, 1];
const LAYERS_PER_STAGE: usize = 2;
const MLP_RATIO: usize = 4;
const DECODER: usize = 256;
const CLASSES: usize = 150;

/// The model and the tensors at which the published partition cuts it.
pub struct Segformer {
    pub net: Net,
    pub image: T,
    /// `[1, c, h, w]` after each stage.
    pub stages: Vec<T>,
    /// The projection of each stage in the decode head.
    pub heads: Vec<T>,
    /// The concatenation of the heads.
    pub fused: T,
    pub logits: T,
}

/// Rows of an image: extents in pixels.
#[derive(Clone, Copy)]
struct Stage {
    index: usize,
    side: usize,
}

impl Stage {
    fn width(self) -> usize {
        WIDTHS[self.index]
    }

    fn tokens(self) -> usize {
        self.side * self.side
    }
}

impl Segformer {
    pub fn build() -> Self {
        let mut net = Net::default();
        let image = net.input(&[1, 3, 512, 512]);
        let mut stages = Vec::new();
        let mut last = image;
        for index in 0..4 {
            last = stage(&mut net, index, last);
            stages.push(last);
        }
        let heads: Vec<T> = stages.iter().map(|&features| project(&mut net, features)).collect();
        let planes: Vec<T> = heads.iter().map(|&head| upsample(&mut net, head)).collect();
        let fused = net.concat(&planes, 1);
        let hidden = net.conv(fused, Conv { channels: DECODER, kernel: 1, stride: 1, groups: 1 });
        let hidden = net.map("Relu", &[hidden]);
        let logits = net.conv(hidden, Conv { channels: CLASSES, kernel: 1, stride: 1, groups: 1 });
        Segformer { net, image, stages, heads, fused, logits }
    }

    pub fn dag(&self) -> Dag {
        self.net.dag(&[self.logits])
    }

    /// The nine published subgraphs: stages, projections, the decode head's memory-bound part, its end.
    pub fn parts(&self) -> Vec<(Vec<T>, Vec<T>)> {
        let mut parts = vec![(vec![self.image], vec![self.stages[0]])];
        parts.extend((1..3).map(|stage| (vec![self.stages[stage - 1]], vec![self.stages[stage]])));
        parts.push((vec![self.stages[2]], vec![self.heads[3]]));
        parts.extend((0..3).map(|stage| (vec![self.stages[stage]], vec![self.heads[stage]])));
        parts.push((self.heads.clone(), vec![self.fused]));
        parts.push((vec![self.fused], vec![self.logits]));
        parts
    }
}

fn stage(net: &mut Net, index: usize, image: T) -> T {
    let stride = if index == 0 { 4 } else { 2 };
    let kernel = if index == 0 { 7 } else { 3 };
    let patches = net.conv(image, Conv { channels: WIDTHS[index], kernel, stride, groups: 1 });
    let stage = Stage { index, side: net.shape(patches)[2] };
    let tokens = image_to_tokens(net, patches);
    let mut hidden = layer_norm(net, tokens);
    for _ in 0..LAYERS_PER_STAGE {
        hidden = layer(net, stage, hidden);
    }
    let hidden = layer_norm(net, hidden);
    tokens_to_image(net, stage, hidden)
}

/// Nine primitives.
fn layer_norm(net: &mut Net, x: T) -> T {
    let width = *net.shape(x).last().expect("[.., c]");
    let (scale, bias, two, epsilon) =
        (net.weight(&[width]), net.weight(&[width]), net.weight(&[]), net.weight(&[]));
    let mean = net.mean(x, &[2]);
    let centered = net.map("Sub", &[x, mean]);
    let square = net.map("Pow", &[centered, two]);
    let variance = net.mean(square, &[2]);
    let shifted = net.map("Add", &[variance, epsilon]);
    let deviation = net.map("Sqrt", &[shifted]);
    let normal = net.map("Div", &[centered, deviation]);
    let scaled = net.map("Mul", &[normal, scale]);
    net.map("Add", &[scaled, bias])
}

/// A product with a constant matrix, then its bias.
fn linear(net: &mut Net, x: T, width: usize) -> T {
    let rows = *net.shape(x).last().expect("[.., c]");
    let weight = net.weight(&[rows, width]);
    let bias = net.weight(&[width]);
    let product = net.matmul(x, weight);
    net.map("Add", &[product, bias])
}

fn image_to_tokens(net: &mut Net, image: T) -> T {
    let [batch, channels, height, width] = net.shape(image)[..] else { panic!("[n, c, h, w]") };
    let flat = net.reshape(image, &[batch, channels, height * width]);
    net.transpose(flat, &[0, 2, 1])
}

fn tokens_to_image(net: &mut Net, stage: Stage, tokens: T) -> T {
    let width = *net.shape(tokens).last().expect("[1, n, c]");
    let image = net.reshape(tokens, &[1, stage.side, stage.side, width]);
    net.transpose(image, &[0, 3, 1, 2])
}

/// 72 primitives, or 58 without sequence reduction.
fn layer(net: &mut Net, stage: Stage, x: T) -> T {
    let hidden = layer_norm(net, x);
    let attended = attention(net, stage, hidden);
    let x = net.map("Add", &[attended, x]);
    let hidden = layer_norm(net, x);
    let fed = feed_forward(net, stage, hidden);
    net.map("Add", &[fed, x])
}

fn attention(net: &mut Net, stage: Stage, x: T) -> T {
    let (width, heads) = (stage.width(), HEADS[stage.index]);
    let query = split_heads(net, x, width, heads, &[0, 2, 1, 3]);
    let source = if REDUCTIONS[stage.index] > 1 { reduce_sequence(net, stage, x) } else { x };
    let key = split_heads(net, source, width, heads, &[0, 2, 3, 1]);
    let value = split_heads(net, source, width, heads, &[0, 2, 1, 3]);
    let scale = net.weight(&[]);
    let scores = net.matmul(query, key);
    let scaled = net.map("Div", &[scores, scale]);
    let weights = net.map("Exp", &[scaled]);
    let head = width / heads;
    let keys = net.shape(value)[2];
    let ones = net.weight(&[1, heads, keys, 1]);
    let extended = net.concat(&[value, ones], 3);
    let product = net.matmul(weights, extended);
    let numerator = net.layout("Slice", product, &[1, heads, stage.tokens(), head]);
    let denominator = net.layout("Slice", product, &[1, heads, stage.tokens(), 1]);
    let context = net.map("Div", &[numerator, denominator]);
    let joined = net.transpose(context, &[0, 2, 1, 3]);
    let joined = net.reshape(joined, &[1, stage.tokens(), width]);
    linear(net, joined, width)
}

fn split_heads(net: &mut Net, x: T, width: usize, heads: usize, perm: &[usize]) -> T {
    let tokens = net.shape(x)[1];
    let projected = linear(net, x, width);
    let split = net.reshape(projected, &[1, tokens, heads, width / heads]);
    net.transpose(split, perm)
}

fn reduce_sequence(net: &mut Net, stage: Stage, x: T) -> T {
    let factor = REDUCTIONS[stage.index];
    let channels_first = net.transpose(x, &[0, 2, 1]);
    let image = net.reshape(channels_first, &[1, stage.width(), stage.side, stage.side]);
    let conv = Conv { channels: stage.width(), kernel: factor, stride: factor, groups: 1 };
    let reduced = net.conv(image, conv);
    let tokens = image_to_tokens(net, reduced);
    layer_norm(net, tokens)
}

fn feed_forward(net: &mut Net, stage: Stage, x: T) -> T {
    let wide = MLP_RATIO * stage.width();
    let hidden = linear(net, x, wide);
    let channels_first = net.transpose(hidden, &[0, 2, 1]);
    let image = net.reshape(channels_first, &[1, wide, stage.side, stage.side]);
    let mixed = net.conv(image, Conv { channels: wide, kernel: 3, stride: 1, groups: wide });
    let tokens = image_to_tokens(net, mixed);
    let active = gelu(net, tokens);
    linear(net, active, stage.width())
}

fn gelu(net: &mut Net, x: T) -> T {
    let (root_two, one, half) = (net.weight(&[]), net.weight(&[]), net.weight(&[]));
    let scaled = net.map("Div", &[x, root_two]);
    let error = net.map("Erf", &[scaled]);
    let shifted = net.map("Add", &[error, one]);
    let product = net.map("Mul", &[x, shifted]);
    net.map("Mul", &[product, half])
}

/// A stage's projection, up to the product.
fn project(net: &mut Net, features: T) -> T {
    let [batch, channels, height, width] = net.shape(features)[..] else { panic!("[n, c, h, w]") };
    let flat = net.reshape(features, &[batch, channels, height * width]);
    let tokens = net.transpose(flat, &[0, 2, 1]);
    let weight = net.weight(&[channels, DECODER]);
    net.matmul(tokens, weight)
}

/// The rest of a stage's projection: four memory-bound primitives up to a quarter of the image's extents.
fn upsample(net: &mut Net, product: T) -> T {
    let side = net.shape(product)[1].isqrt();
    let bias = net.weight(&[DECODER]);
    let biased = net.map("Add", &[product, bias]);
    let channels_first = net.transpose(biased, &[0, 2, 1]);
    let image = net.reshape(channels_first, &[1, DECODER, side, side]);
    net.layout("Resize", image, &[1, DECODER, 128, 128])
}
