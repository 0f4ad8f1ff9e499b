//! YOLOX-Nano at 416 x 416: 367 primitives.

use super::net::{Conv, Net, T};

/// The graph and the published partition: (sources, outputs) of each part. The last part is one candidate.
pub struct YoloX {
    pub net: Net,
    pub parts: Vec<(Vec<T>, Vec<T>)>,
    pub output: T,
}

const CLASSES: usize = 80;
const HEAD_WIDTH: usize = 64;

pub fn build() -> YoloX {
    let mut net = Net::default();
    let image = net.input(&[1, 3, 416, 416]);
    let focus = focus(&mut net, image);
    let stem = base_conv(&mut net, focus, 16, 3, 1);
    let dark2 = down(&mut net, stem, 32, 1);
    let dark3 = down(&mut net, dark2, 64, 3);
    let dark4 = down(&mut net, dark3, 128, 3);
    let dark5 = dw_conv(&mut net, dark4, 256, 2);
    let dark5 = pyramid(&mut net, dark5);
    let dark5 = csp(&mut net, dark5, 256, 1, Shortcut::None);
    let lateral = base_conv(&mut net, dark5, 128, 1, 1);
    let joined = up_and_join(&mut net, lateral, dark4);
    let middle = csp(&mut net, joined, 128, 1, Shortcut::None);
    let reduced = base_conv(&mut net, middle, 64, 1, 1);
    let joined = up_and_join(&mut net, reduced, dark3);
    let fine = csp(&mut net, joined, 64, 1, Shortcut::None);
    let coarse = down_and_join(&mut net, fine, reduced, 64);
    let coarse = csp(&mut net, coarse, 128, 1, Shortcut::None);
    let coarsest = down_and_join(&mut net, coarse, lateral, 128);
    let coarsest = csp(&mut net, coarsest, 256, 1, Shortcut::None);
    let heads: Vec<[T; 3]> = [coarsest, coarse, fine].iter().map(|&level| head(&mut net, level)).collect();
    let output = decode(&mut net, &[heads[2], heads[1], heads[0]]);
    let parts = vec![
        (vec![image], vec![dark3]),
        (vec![dark3], vec![dark4]),
        (vec![dark4], vec![lateral]),
        (vec![lateral, dark4], vec![reduced]),
        (vec![reduced, dark3], vec![fine]),
        (vec![fine, reduced], vec![coarse]),
        (vec![coarse, lateral], heads[0].to_vec()),
        (vec![coarse], heads[1].to_vec()),
        (vec![fine], heads[2].to_vec()),
        (heads.iter().flatten().copied().collect(), vec![output]),
    ];
    YoloX { net, parts, output }
}

/// Whether a bottleneck adds its input to its result.
#[derive(Clone, Copy, PartialEq)]
enum Shortcut {
    Add,
    None,
}

/// Two row slices, each cut into two column slices, concatenated.
fn focus(net: &mut Net, image: T) -> T {
    let [batch, channels, height, width] = net.shape(image)[..] else { panic!("[n, c, h, w]") };
    let mut quarters = Vec::new();
    for _ in 0..2 {
        let rows = net.layout("Slice", image, &[batch, channels, height / 2, width]);
        for _ in 0..2 {
            quarters.push(net.layout("Slice", rows, &[batch, channels, height / 2, width / 2]));
        }
    }
    net.concat(&quarters, 1)
}

fn activated_conv(net: &mut Net, x: T, conv: Conv) -> T {
    let hidden = net.conv(x, conv);
    let gate = net.map("Sigmoid", &[hidden]);
    net.map("Mul", &[hidden, gate])
}

fn base_conv(net: &mut Net, x: T, channels: usize, kernel: usize, stride: usize) -> T {
    activated_conv(net, x, Conv { channels, kernel, stride, groups: 1 })
}

fn dw_conv(net: &mut Net, x: T, channels: usize, stride: usize) -> T {
    let width = net.shape(x)[1];
    let hidden = activated_conv(net, x, Conv { channels: width, kernel: 3, stride, groups: width });
    base_conv(net, hidden, channels, 1, 1)
}

fn csp(net: &mut Net, x: T, channels: usize, repeats: usize, shortcut: Shortcut) -> T {
    let mut main = base_conv(net, x, channels / 2, 1, 1);
    let side = base_conv(net, x, channels / 2, 1, 1);
    for _ in 0..repeats {
        let hidden = base_conv(net, main, channels / 2, 1, 1);
        let hidden = dw_conv(net, hidden, channels / 2, 1);
        main = if shortcut == Shortcut::Add { net.map("Add", &[hidden, main]) } else { hidden };
    }
    let joined = net.concat(&[main, side], 1);
    base_conv(net, joined, channels, 1, 1)
}

fn down(net: &mut Net, x: T, channels: usize, repeats: usize) -> T {
    let hidden = dw_conv(net, x, channels, 2);
    csp(net, hidden, channels, repeats, Shortcut::Add)
}

fn pyramid(net: &mut Net, x: T) -> T {
    let width = net.shape(x)[1];
    let hidden = base_conv(net, x, width / 2, 1, 1);
    let mut levels = vec![hidden];
    levels.extend([5, 9, 13].map(|kernel| net.max_pool(hidden, kernel)));
    let joined = net.concat(&levels, 1);
    base_conv(net, joined, width, 1, 1)
}

fn up_and_join(net: &mut Net, coarse: T, fine: T) -> T {
    let [batch, channels, height, width] = net.shape(coarse)[..] else { panic!("[n, c, h, w]") };
    let enlarged = net.layout("Resize", coarse, &[batch, channels, 2 * height, 2 * width]);
    net.concat(&[enlarged, fine], 1)
}

fn down_and_join(net: &mut Net, fine: T, coarse: T, channels: usize) -> T {
    let reduced = dw_conv(net, fine, channels, 2);
    net.concat(&[reduced, coarse], 1)
}

/// Box, objectness and class predictions of one level.
fn head(net: &mut Net, level: T) -> [T; 3] {
    let stem = base_conv(net, level, HEAD_WIDTH, 1, 1);
    let [classes, boxes] = [(); 2].map(|()| {
        let hidden = dw_conv(net, stem, HEAD_WIDTH, 1);
        dw_conv(net, hidden, HEAD_WIDTH, 1)
    });
    let mut predict = |x, channels| net.conv(x, Conv { channels, kernel: 1, stride: 1, groups: 1 });
    [predict(boxes, 4), predict(boxes, 1), predict(classes, CLASSES)]
}

fn decode(net: &mut Net, levels: &[[T; 3]]) -> T {
    let mut flat = Vec::new();
    for &[boxes, objectness, classes] in levels {
        let objectness = net.map("Sigmoid", &[objectness]);
        let classes = net.map("Sigmoid", &[classes]);
        let joined = net.concat(&[boxes, objectness, classes], 1);
        let [batch, channels, height, width] = net.shape(joined)[..] else { panic!("[n, c, h, w]") };
        flat.push(net.reshape(joined, &[batch, channels, height * width]));
    }
    let all = net.concat(&flat, 2);
    net.transpose(all, &[0, 2, 1])
}
