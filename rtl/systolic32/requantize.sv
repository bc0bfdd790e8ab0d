// A lane of requantize: a 32-bit sum to a byte, in eight steps, one sum a cycle:
//   clamp((((acc + bias) << left) * multiplier >> (32 + shift)) + offset - down) >> 1, low, high)
// With `even`, `down` is 1 for an exact half above an even number: a shifted number that ends in 01, and nothing but
// zeros in what was cut off of the product. Its last bit is 1 then, so that no second adder takes it away.
// A number is given in the cycle in which its step uses it; the byte is there 7 cycles after `acc`.
module requantize (
    input  logic               clk,
    input  logic        [31:0] acc,         // step 0
    input  logic        [31:0] bias,        // step 0
    input  logic        [ 4:0] left,        // step 1
    input  logic signed [31:0] multiplier,  // step 2
    input  logic        [ 4:0] shift,       // step 5
    input  logic signed [ 9:0] offset,      // step 6
    input  logic               even,        // step 6
    input  logic signed [ 7:0] low,         // step 7
    input  logic signed [ 7:0] high,        // step 7
    output logic signed [ 7:0] y
);
  logic [31:0] biased;
  logic signed [31:0] value, scaled, shifted, rounded;
  // the product of 32 x 32 bits from four products of halves; of its lower word, only whether it is zero
  logic signed [31:0] high_high, high_high_2;
  logic signed [32:0] high_low, low_high;
  logic [31:0] low_low;
  logic signed [33:0] middle;
  logic low_zero, low_zero_2, half, down;

  always_ff @(posedge clk) begin
    biased <= acc + bias;

    value <= $signed(biased << left);

    high_high <= $signed(value[31:16]) * $signed(multiplier[31:16]);
    high_low <= $signed(value[31:16]) * $signed({1'b0, multiplier[15:0]});
    low_high <= $signed({1'b0, value[15:0]}) * $signed(multiplier[31:16]);
    low_low <= value[15:0] * multiplier[15:0];

    middle <= 34'(high_low) + 34'(low_high) + $signed({18'b0, low_low[31:16]});
    high_high_2 <= high_high;
    low_zero <= low_low[15:0] == '0;

    scaled <= high_high_2 + 32'($signed(middle[33:16]));
    low_zero_2 <= low_zero && middle[15:0] == '0;

    shifted <= scaled >>> shift;
    half <= low_zero_2 && (scaled & ~({32{1'b1}} << shift)) == '0;

    rounded <= ($signed({shifted[31:1], shifted[0] && !down}) + 32'(offset)) >>> 1;
  end
  assign down = even && half && shifted[1:0] == 2'b01;
  assign y = rounded < 32'(low) ? low : rounded > 32'(high) ? high : rounded[7:0];
endmodule
