// The engine `load`: bytes from the host's memory, or a constant byte, into weights, activations or params.
//
// A request goes out in every cycle and is answered LATENCY cycles later; where the bytes go waits as long in a delay.
// Bytes of a constant take the same way, so that all arrive in order. Finished: the last piece is being written.
module load
  import formats::*;
#(
    parameter int N       = ARRAY,
    parameter int ADDRESS = 40,
    parameter int LATENCY = 32
) (
    input  logic                    clk,
    input  logic                    reset,
    // the next instruction, and where the argument that it names lies
    input  load_copy_t              next,
    input  logic                    go,
    input  logic [     ADDRESS-1:0] base,
    output logic                    take,
    output logic                    finish,
    // the host's memory
    output logic                    request,
    output logic [     ADDRESS-1:0] request_at,
    input  logic [       8*BUS-1:0] answer,
    // the memories on the chip: the bytes to write of the word at `word`; `data` is the same for all pieces of a word
    output logic [           N-1:0] write_weights,
    output logic [           N-1:0] write_activations,
    output logic [         4*N-1:0] write_params,
    output logic [LOAD_COPY_AT-1:0] word,
    output logic [       8*BUS-1:0] data
);
  localparam int NARROW = N / BUS, WIDE = 4 * N / BUS;  // pieces of a word of weights, of params
  localparam int LANE = $clog2(WIDE);

  typedef struct packed {
    logic last;
    logic [LOAD_COPY_ROUTE-1:0] route;
    logic fill;
    logic [7:0] value;
    logic [LOAD_COPY_AT-1:0] word;
    logic [LANE-1:0] lane;
    logic [BUS-1:0] bytes;
  } piece_t;

  logic valid, last, fill, arrived;
  logic [LOAD_COPY_ROUTE-1:0] route;
  logic [7:0] value;
  logic [LOAD_COPY_AT-1:0] to_word;
  logic [LANE-1:0] lane;
  logic [BUS-1:0] to_bytes;
  piece_t here;

  assign take = go && (!valid || last);
  assign request = valid && !fill;

  always_ff @(posedge clk) if (take) {route, fill, value} <= {next.route, next.fill, next.value};

  pieces #(
      .BUS(BUS),
      .ADDRESS(ADDRESS),
      .AT(LOAD_COPY_AT),
      .LANE(LANE),
      .COUNT(LOAD_COPY_COUNT),
      .RUN(LOAD_COPY_RUN)
  ) cut (
      .clk,
      .reset,
      .start(take),
      .host(base + ADDRESS'(next.host)),
      .host_strides({
        ADDRESS'($signed(next.host_stride_0)),
        ADDRESS'($signed(next.host_stride_1)),
        ADDRESS'($signed(next.host_stride_2))
      }),
      .at(next.at),
      .strides({
        LOAD_COPY_AT'(next.stride_0), LOAD_COPY_AT'(next.stride_1), LOAD_COPY_AT'(next.stride_2)
      }),
      .counts({next.count_0, next.count_1, next.count_2}),
      .run(next.run),
      .last_lane(next.route == LOAD_COPY_ROUTE'(LOAD_PARAMS) ? LANE'(WIDE - 1) : LANE'(NARROW - 1)),
      .valid,
      .last,
      .piece_host(request_at),
      .piece_word(to_word),
      .piece_lane(lane),
      .piece_bytes(to_bytes)
  );
  delay #(
      .WIDTH ($bits(piece_t)),
      .CYCLES(LATENCY)
  ) under_way (
      .clk,
      .reset,
      .in_valid(valid),
      .in({last, route, fill, value, to_word, lane, to_bytes}),
      .out_valid(arrived),
      .out(here)
  );

  logic [4*N-1:0] bytes;
  for (genvar p = 0; p < WIDE; p++) begin : piece
    assign bytes[p*BUS+:BUS] = arrived && here.lane == LANE'(p) ? here.bytes : '0;
  end
  assign word = here.word;
  assign data = here.fill ? {BUS{here.value}} : answer;
  assign write_weights = here.route == LOAD_COPY_ROUTE'(LOAD_WEIGHTS) ? bytes[N-1:0] : '0;
  assign write_activations = here.route == LOAD_COPY_ROUTE'(LOAD_ACTIVATIONS) ? bytes[N-1:0] : '0;
  assign write_params = here.route == LOAD_COPY_ROUTE'(LOAD_PARAMS) ? bytes : '0;
  assign finish = arrived && here.last;
endmodule
