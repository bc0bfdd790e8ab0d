// The engine `array`: mma and depthwise. Its pipeline has two parts, weights in (N cycles) and rows (m cycles), each with
// its own instruction. The weights of an instruction move to the multipliers when it enters the second part. Those of a
// depthwise are one row, of which every row of multipliers takes the byte on the diagonal, and zeros.
module array #(
    parameter int N = formats::ARRAY,
    parameter int W = formats::ARRAY_MMA_W,
    parameter int X = formats::ARRAY_MMA_X,
    parameter int ROW = formats::ACCUMULATORS_AT,
    parameter int M = formats::ARRAY_MMA_M,
    parameter int COUNT = formats::ARRAY_MMA_N
) (
    input  logic                           clk,
    input  logic                           reset,
    input  formats::array_mma_t                     next,
    input  logic                           go,
    output logic                           take,
    output logic                           finish,
    // weights and activations, which answer in the next cycle
    output logic       [    W-1:0] weights_at,
    input  logic       [            8*N-1:0] weights,
    output logic       [    X-1:0] activations_at,
    input  logic       [            8*N-1:0] activations,
    // rows of accumulators, for requantize
    input  logic       [ROW-1:0] read_at,
    output logic       [           32*N-1:0] read_data
);
  localparam int K = $clog2(N);
  localparam int SUM = 16 + K;
  localparam int TO_ACCUMULATORS = N + 2;  // cycles from the address of a row of activations to column 0

  // ---- weights in ----
  formats::array_mma_t first;
  formats::array_depthwise_t each;  // the next instruction, read as a depthwise
  logic held, fresh, coming, load, nonzero, enter, entered, swap;
  logic for_diagonal, diagonal, on_diagonal;  // a depthwise comes, is held, has given the row of weights that comes
  logic [K-1:0] row_of_weights, row_that_comes;  // stays at the last one
  logic brought;

  assign each = next;
  assign for_diagonal = next.opcode == 1'(formats::ARRAY_DEPTHWISE);
  assign brought = row_of_weights == K'(N - 1);
  assign take = go && (!held || enter);
  assign weights_at = first.w + (diagonal ? '0 : W'(row_of_weights));

  always_ff @(posedge clk) begin
    fresh <= take;
    {load, coming} <= {coming, held && fresh};
    nonzero <= COUNT'(row_of_weights) < first.k;
    {on_diagonal, row_that_comes} <= {diagonal, row_of_weights};
    {swap, entered} <= {entered, enter};
    if (take) begin
      first <= next;
      diagonal <= for_diagonal;
      if (for_diagonal) begin
        {first.m_0, first.m_1, first.m_2, first.n, first.k} <= {each.m_0, each.m_1, each.m_2, each.n, each.n};
        {first.acc, first.x, first.w, first.start} <= {each.acc, each.x, each.w, each.start};
        {first.x_stride_0, first.x_stride_1, first.x_stride_2} <= {
          each.x_stride_0, each.x_stride_1, each.x_stride_2
        };
      end
    end
    if (take) row_of_weights <= '0;
    else if (!brought) row_of_weights <= row_of_weights + 1'b1;
    if (reset) held <= 1'b0;
    else if (take) held <= 1'b1;
    else if (enter) held <= 1'b0;
  end

  // ---- rows ----
  logic streaming, last_row, replace, last;
  logic [1:0] level;
  logic [ROW-1:0] row;
  logic [X:0] stride_0, stride_1, stride_2;
  logic [COUNT-1:0] columns;

  assign {stride_0, stride_1, stride_2} = {first.x_stride_0, first.x_stride_1, first.x_stride_2};
  assign last = streaming && last_row;
  assign enter = held && brought && (!streaming || last_row);

  walk #(
      .COUNT(M)
  ) rows (
      .clk,
      .start(enter),
      .counts({first.m_0, first.m_1, first.m_2}),
      .step(streaming),
      .level,
      .last(last_row)
  );
  pointer #(
      .WIDTH(X)
  ) x (
      .clk,
      .start(enter),
      .from(first.x),
      .strides({stride_0[X-1:0], stride_1[X-1:0], stride_2[X-1:0]}),
      .step(streaming),
      .level,
      .at(activations_at),
      .following()
  );
  always_ff @(posedge clk) begin
    row <= enter ? first.acc : row + 1'b1;
    if (enter) {replace, columns} <= {first.start, first.n};
    if (reset) streaming <= 1'b0;
    else if (enter) streaming <= 1'b1;
    else if (last_row) streaming <= 1'b0;
  end

  // ---- products, and their sums ----
  logic [SUM*N-1:0] sums;
  logic [8*N-1:0] x_word, w_word;  // memories are slow: what they give is kept for a cycle
  logic out, out_replace, out_last;
  logic [ROW-1:0] out_row;
  logic [COUNT-1:0] out_columns;

  always_ff @(posedge clk) x_word <= activations;
  for (genvar j = 0; j < N; j++) begin : weight
    always_ff @(posedge clk)
      w_word[8*j+:8] <= nonzero && (!on_diagonal || row_that_comes == K'(j)) ? weights[8*j+:8] : '0;
  end
  grid #(
      .N  (N),
      .SUM(SUM)
  ) multipliers (
      .clk,
      .x(x_word),
      .swap,
      .w(w_word),
      .load,
      .sums
  );
  delay #(
      .WIDTH (ROW + COUNT + 2),
      .CYCLES(TO_ACCUMULATORS)
  ) through_grid (
      .clk,
      .reset,
      .in_valid(streaming),
      .in({row, columns, replace, last}),
      .out_valid(out),
      .out({out_row, out_columns, out_replace, out_last})
  );
  accumulators #(
      .N(N),
      .SUM(SUM),
      .WORDS(formats::ACCUMULATORS_WORDS),
      .AT(ROW),
      .COUNT(COUNT)
  ) sums_of_rows (
      .clk,
      .reset,
      .valid(out),
      .at(out_row),
      .replace(out_replace),
      .columns(out_columns),
      .last(out_last),
      .sums,
      .finish,
      .read_at,
      .read_data
  );
endmodule
