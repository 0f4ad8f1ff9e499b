//! Candy, a style-transfer network, at 224 x 224 with instance normalisation fissioned into nine primitives: 184.

use super::net::{Conv, Net, T};

/// The graph and its output.
pub fn build() -> (Net, T) {
    let mut net = Net::default();
    let image = net.input(&[1, 3, 224, 224]);
    let mut hidden = image;
    for (channels, kernel, stride) in [(32, 9, 1), (64, 3, 2), (128, 3, 2)] {
        hidden = block(&mut net, hidden, Conv { channels, kernel, stride, groups: 1 });
        hidden = net.map("Relu", &[hidden]);
    }
    for _ in 0..5 {
        let conv = Conv { channels: 128, kernel: 3, stride: 1, groups: 1 };
        let first = block(&mut net, hidden, conv);
        let active = net.map("Relu", &[first]);
        let second = block(&mut net, active, conv);
        hidden = net.map("Add", &[second, hidden]);
    }
    for channels in [64, 32] {
        let [batch, width, side, _] = net.shape(hidden)[..] else { panic!("[n, c, h, w]") };
        hidden = net.layout("Upsample", hidden, &[batch, width, 2 * side, 2 * side]);
        hidden = block(&mut net, hidden, Conv { channels, kernel: 3, stride: 1, groups: 1 });
        hidden = net.map("Relu", &[hidden]);
    }
    let output = padded_conv(&mut net, hidden, Conv { channels: 3, kernel: 9, stride: 1, groups: 1 });
    (net, output)
}

fn padded_conv(net: &mut Net, x: T, conv: Conv) -> T {
    let [batch, channels, height, width] = net.shape(x)[..] else { panic!("[n, c, h, w]") };
    let margin = conv.kernel / 2;
    let padded = net.layout("Pad", x, &[batch, channels, height + 2 * margin, width + 2 * margin]);
    net.conv_valid(padded, conv)
}

fn block(net: &mut Net, x: T, conv: Conv) -> T {
    let hidden = padded_conv(net, x, conv);
    instance_norm(net, hidden)
}

/// Nine primitives on `[n, c, h, w]`.
pub fn instance_norm(net: &mut Net, x: T) -> T {
    let channels = net.shape(x)[1];
    let (scale, bias, epsilon) =
        (net.weight(&[1, channels, 1, 1]), net.weight(&[1, channels, 1, 1]), net.weight(&[]));
    let mean = net.mean(x, &[2, 3]);
    let centered = net.map("Sub", &[x, mean]);
    let square = net.map("Mul", &[centered, centered]);
    let variance = net.mean(square, &[2, 3]);
    let shifted = net.map("Sum", &[variance, epsilon]);
    let deviation = net.map("Sqrt", &[shifted]);
    let normal = net.map("Div", &[centered, deviation]);
    let scaled = net.map("Mul", &[normal, scale]);
    net.map("Sum", &[scaled, bias])
}
