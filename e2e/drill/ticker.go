package drill

import (
	"bufio"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// tickerEnv names the file to which a ticker writes. If it is set, the test binary is a ticker.
const tickerEnv = "DRILL_TICKER"

// tickEvery is how often a ticker writes a sign of life.
const tickEvery = 5 * time.Millisecond

// Ticker runs the process as a ticker and does not return, if it was started as one. Call it first in
// TestMain.
func Ticker() {
	path := os.Getenv(tickerEnv)
	if path == "" {
		return
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	print := func(what string) {
		// A single write of less than PIPE_BUF with O_APPEND, so that lines of several processes do not mix.
		fmt.Fprintf(f, "%s %s %s %s %d\n", what, os.Getenv("EMITD_UNIT"), os.Getenv("EMITD_GENERATION"), os.Getenv("EMITD_NODE"), Boot())
	}
	print("start")
	tick := time.NewTicker(tickEvery)
	for {
		select {
		case <-term:
			print("end")
			os.Exit(0)
		case <-tick.C:
			print("tick")
		}
	}
}

// Boot returns the time of the host's boot clock in nanoseconds. It is the same for all processes, never
// steps, and includes suspended time.
func Boot() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// Run is what one ticker wrote about itself.
type Run struct {
	Unit       string
	Generation int64
	Node       string
	Start, End int64 // first and last sign of life
	Clean      bool  // it was asked to end, and ended
}

// Living reports whether the run showed a sign of life within the last d.
func (r Run) Living(now int64, d time.Duration) bool { return !r.Clean && now-r.End < int64(d) }

// ReadRuns reads what tickers wrote, in the order of their starts. A process that crashes and restarts
// under the same generation gives one Run per process.
func ReadRuns(path string) ([]Run, error) {
	file, err := os.Open(path)
	if err != nil {
		if os.IsNotExist(err) {
			return nil, nil
		}
		return nil, err
	}
	defer file.Close()
	var runs []Run
	open := map[string]int{}
	lines := bufio.NewScanner(file) // after an hour, the file has hundreds of megabytes
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) != 5 {
			continue // the last line may be incomplete
		}
		generation, err1 := strconv.ParseInt(f[2], 10, 64)
		at, err2 := strconv.ParseInt(f[4], 10, 64)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("ticker line %q", lines.Text())
		}
		key := f[1] + "@" + f[2] + "@" + f[3]
		i, known := open[key]
		if f[0] == "start" || !known {
			open[key] = len(runs)
			runs = append(runs, Run{Unit: f[1], Generation: generation, Node: f[3], Start: at, End: at})
			continue
		}
		runs[i].End = at
		runs[i].Clean = f[0] == "end"
	}
	return runs, lines.Err()
}
