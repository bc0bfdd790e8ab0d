// The engine `post`: requantize, N lanes, a row in every cycle.
//
// An instruction first reads its rows of params, one in each of three cycles: bias, shift, multiplier. That happens in
// the order in which the lanes need them, beside the last rows of the instruction before, so nothing waits as long as
// instructions have SETUP rows. What is the same for all lanes travels beside the rows, from step to step.
module post #(
    parameter int N = formats::ARRAY,
    parameter int PARAM = formats::PARAMS_AT,
    parameter int ROW = formats::ACCUMULATORS_AT,
    parameter int Y = formats::OUTPUTS_AT,
    parameter int COUNT = formats::POST_REQUANTIZE_N
) (
    input  logic                             clk,
    input  logic                             reset,
    input  formats::post_requantize_t                 next,
    input  logic                             go,
    output logic                             take,
    output logic                             finish,
    // params and accumulators, which answer in the next cycle
    output logic             [PARAM-1:0] params_at,
    input  logic             [     32*N-1:0] params,
    output logic       [ROW-1:0] acc_at,
    input  logic             [     32*N-1:0] acc,
    // outputs
    output logic                     [N-1:0] write,  // of which lanes
    output logic            [Y-1:0] write_at,
    output logic             [      8*N-1:0] write_data
);
  localparam int SETUP = 4;  // cycles that an instruction takes at least
  localparam int STEPS = 9;  // from the cycle of a row's place to that of its bytes

  // ---- rows ----
  formats::post_requantize_t now;
  logic busy, rows_left, last_row, over;
  logic [1:0] age;  // cycles since the instruction began, 3 from the fourth on
  logic [ROW-1:0] acc_row;
  logic [Y-1:0] y_row;

  assign over = busy && age == 2'(SETUP - 1) && (!rows_left || last_row);
  assign take = go && (!busy || over);

  walk #(
      .COUNT(formats::POST_REQUANTIZE_M)
  ) rows (
      .clk,
      .start(take),
      .counts({next.m_0, next.m_1, next.m_2}),
      .step(rows_left),
      .level(),
      .last(last_row)
  );
  always_ff @(posedge clk) begin
    if (take) now <= next;
    if (take) age <= '0;
    else if (age != 2'(SETUP - 1)) age <= age + 1'b1;
    if (reset) {busy, rows_left} <= '0;
    else if (take) {busy, rows_left} <= '1;
    else begin
      if (over) busy <= 1'b0;
      if (last_row) rows_left <= 1'b0;
    end
    acc_row <= take ? next.acc : acc_row + 1'b1;
    y_row <= take ? next.y : y_row + 1'b1;
    acc_at <= acc_row;
  end

  for (genvar s = 0; s <= STEPS; s++) begin : step
    logic valid, last;
    logic [COUNT-1:0] lanes;
    logic [Y-1:0] y;
    logic [4:0] left;
    logic [9:0] offset;
    logic even;
    logic [7:0] low, high;

    if (s == 0) begin : g_in
      assign {valid, last, y} = {rows_left, over, y_row};
      assign {lanes, left, low, high} = {now.n, now.left, now.low, now.high};
      assign {offset, even} = {now.offset, now.even};
    end else begin : g_on
      always_ff @(posedge clk) begin
        {valid, last} <= reset ? '0 : {step[s-1].valid, step[s-1].last};
        {y, lanes, left} <= {step[s-1].y, step[s-1].lanes, step[s-1].left};
        {low, high} <= {step[s-1].low, step[s-1].high};
        {offset, even} <= {step[s-1].offset, step[s-1].even};
      end
    end
  end

  // ---- params: the rows that come, and the steps that must not see them too early ----
  logic [6:0] since;  // since[k]: the instruction began k + 1 cycles ago
  logic [32*N-1:0] bias, multiplier;
  logic [5*N-1:0] shift, next_shift;

  assign params_at = age == 0 ? now.bias : age == 1 ? now.shift : now.multiplier;
  always_ff @(posedge clk) begin
    since <= reset ? '0 : {since[5:0], take};
    if (since[1]) bias <= params;
    if (since[3]) multiplier <= params;
    if (since[6]) shift <= next_shift;
  end

  for (genvar j = 0; j < N; j++) begin : lane
    always_ff @(posedge clk) if (since[2]) next_shift[5*j+:5] <= params[32*j+:5];
    assign write[j] = step[STEPS].valid && step[STEPS].lanes > COUNT'(j);
    requantize scale (
        .clk,
        .acc(acc[32*j+:32]),
        .bias(bias[32*j+:32]),
        .left(step[3].left),
        .multiplier(multiplier[32*j+:32]),
        .shift(shift[5*j+:5]),
        .offset(step[8].offset),
        .even(step[8].even),
        .low(step[9].low),
        .high(step[9].high),
        .y(write_data[8*j+:8])
    );
  end
  assign write_at = step[STEPS].y;
  assign finish = step[STEPS].last;
endmodule
