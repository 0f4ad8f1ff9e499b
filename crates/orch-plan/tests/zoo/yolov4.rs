//! YOLOv4 at 416 x 416 up to the box decoding: 403 primitives.

use super::net::{Conv, Net, T};

/// The graph and the published partition: (sources, outputs) of each part.
pub struct YoloV4 {
    pub net: Net,
    pub parts: Vec<(Vec<T>, Vec<T>)>,
}

/// Channels of a prediction: three anchors of 80 classes, four coordinates and an objectness.
const PREDICTION: usize = 255;

pub fn build() -> YoloV4 {
    let mut net = Net::default();
    let image = net.input(&[1, 3, 416, 416]);
    let down1 = first_stage(&mut net, image);
    let down2 = stage(&mut net, down1, 128, 2);
    let down3 = stage(&mut net, down2, 256, 8);
    let down4 = stage(&mut net, down3, 512, 8);
    let down5 = stage(&mut net, down4, 1024, 4);
    let neck6 = spatial_pyramid(&mut net, down5);
    let neck13 = merge_up(&mut net, neck6, down4, 256);
    let neck20 = merge_up(&mut net, neck13, down3, 128);
    let fine = predict(&mut net, neck20, 256);
    let (middle, middle_features) = merge_down(&mut net, neck20, neck13, 256);
    let (coarse, _) = merge_down(&mut net, middle_features, neck6, 512);
    let parts = vec![
        (vec![image], vec![down3]),
        (vec![down3], vec![down4]),
        (vec![down4], vec![neck6]),
        (vec![down4, neck6], vec![neck13]),
        (vec![neck13, down3], vec![neck20]),
        (vec![neck20], vec![fine]),
        (vec![neck13, neck20, neck6], vec![middle, coarse]),
    ];
    YoloV4 { net, parts }
}

/// A convolution with the Mish activation: four primitives.
fn mish(net: &mut Net, x: T, channels: usize, kernel: usize, stride: usize) -> T {
    let hidden = net.conv(x, Conv { channels, kernel, stride, groups: 1 });
    let soft = net.map("Softplus", &[hidden]);
    let bounded = net.map("Tanh", &[soft]);
    net.map("Mul", &[hidden, bounded])
}

fn leaky(net: &mut Net, x: T, channels: usize, kernel: usize, stride: usize) -> T {
    let hidden = net.conv(x, Conv { channels, kernel, stride, groups: 1 });
    net.map("LeakyRelu", &[hidden])
}

fn first_stage(net: &mut Net, image: T) -> T {
    let hidden = mish(net, image, 32, 3, 1);
    let hidden = mish(net, hidden, 64, 3, 2);
    let route = mish(net, hidden, 64, 1, 1);
    let main = mish(net, hidden, 64, 1, 1);
    let inner = mish(net, main, 32, 1, 1);
    let inner = mish(net, inner, 64, 3, 1);
    let sum = net.map("Add", &[inner, main]);
    let main = mish(net, sum, 64, 1, 1);
    let joined = net.concat(&[main, route], 1);
    mish(net, joined, 64, 1, 1)
}

fn stage(net: &mut Net, x: T, channels: usize, repeats: usize) -> T {
    let half = channels / 2;
    let hidden = mish(net, x, channels, 3, 2);
    let route = mish(net, hidden, half, 1, 1);
    let mut main = mish(net, hidden, half, 1, 1);
    for _ in 0..repeats {
        let inner = mish(net, main, half, 1, 1);
        let inner = mish(net, inner, half, 3, 1);
        main = net.map("Add", &[main, inner]);
    }
    let main = mish(net, main, half, 1, 1);
    let joined = net.concat(&[main, route], 1);
    mish(net, joined, channels, 1, 1)
}

/// Three leaky convolutions that alternate between `channels` and twice as many.
fn squeeze(net: &mut Net, x: T, channels: usize) -> T {
    let hidden = leaky(net, x, channels, 1, 1);
    let hidden = leaky(net, hidden, 2 * channels, 3, 1);
    leaky(net, hidden, channels, 1, 1)
}

fn spatial_pyramid(net: &mut Net, x: T) -> T {
    let hidden = squeeze(net, x, 512);
    let mut levels: Vec<T> = [13, 9, 5].map(|kernel| net.max_pool(hidden, kernel)).to_vec();
    levels.push(hidden);
    let joined = net.concat(&levels, 1);
    squeeze(net, joined, 512)
}

fn merge_up(net: &mut Net, coarse: T, fine: T, channels: usize) -> T {
    let hidden = leaky(net, coarse, channels, 1, 1);
    let [batch, width, side, _] = net.shape(hidden)[..] else { panic!("[n, c, h, w]") };
    let spread = net.reshape(hidden, &[batch, width, side, 1, side, 1]);
    let repeated = net.layout("Expand", spread, &[batch, width, side, 2, side, 2]);
    let enlarged = net.reshape(repeated, &[batch, width, 2 * side, 2 * side]);
    let lateral = leaky(net, fine, channels, 1, 1);
    let joined = net.concat(&[lateral, enlarged], 1);
    five(net, joined, channels)
}

fn five(net: &mut Net, x: T, channels: usize) -> T {
    let hidden = squeeze(net, x, channels);
    let hidden = leaky(net, hidden, 2 * channels, 3, 1);
    leaky(net, hidden, channels, 1, 1)
}

fn predict(net: &mut Net, x: T, channels: usize) -> T {
    let hidden = leaky(net, x, channels, 3, 1);
    net.conv(hidden, Conv { channels: PREDICTION, kernel: 1, stride: 1, groups: 1 })
}

/// The prediction and the features of the next coarser level.
fn merge_down(net: &mut Net, fine: T, coarse: T, channels: usize) -> (T, T) {
    let reduced = leaky(net, fine, channels, 3, 2);
    let joined = net.concat(&[reduced, coarse], 1);
    let features = five(net, joined, channels);
    (predict(net, features, 2 * channels), features)
}
