package cli

import (
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// TestStopSignals checks that signals within a second of the first count as the same one, and that a
// later one forces the end.
func TestStopSignals(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		signals := make(chan os.Signal)
		stops, forced := 0, make(chan os.Signal, 1)
		go func() { forced <- forcing(signals, func() { stops++ }) }()
		signals <- os.Interrupt
		for _, after := range []time.Duration{0, time.Millisecond, oneStop - 2*time.Millisecond} {
			time.Sleep(after) // of the bubble's clock
			signals <- os.Interrupt
		}
		synctest.Wait()
		if stops != 1 || len(forced) != 0 {
			t.Fatalf("stopped %d times, forced %d times within a second, want 1 and 0", stops, len(forced))
		}
		time.Sleep(time.Millisecond)
		signals <- os.Kill
		if s := <-forced; s != os.Kill || stops != 1 {
			t.Errorf("%v forced, stopped %d times", s, stops)
		}
	})
}

// TestGoRunIsReported checks that suggested commands name a program that exists.
func TestGoRunIsReported(t *testing.T) {
	t.Parallel()
	for program, want := range map[string]bool{
		"/tmp/go-build2718/b001/exe/emitd": true,
		"/usr/local/bin/emitd":             false,
		"emitd":                            false,
	} {
		if got := goRun(program); got != want {
			t.Errorf("%s: %v, want %v", program, got, want)
		}
	}
}
