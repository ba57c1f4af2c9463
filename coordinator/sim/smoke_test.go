package sim

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestSmoke(t *testing.T) {
	faults := All
	if s := os.Getenv("F"); s != "" {
		n, _ := strconv.Atoi(s)
		faults = Faults(n)
	}
	n := 40
	if s := os.Getenv("N"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	first := 1
	if s := os.Getenv("S"); s != "" {
		first, _ = strconv.Atoi(s)
		n = 1
	}
	kinds := map[string]int{}
	for seed := first; seed < first+n; seed++ {
		start := time.Now()
		cfg := Config{Seed: uint64(seed), Faults: faults}
		if os.Getenv("T") != "" {
			cfg.Trace, _ = os.Create(os.Getenv("T"))
		}
		r, err := Run(cfg)
		if err != nil {
			v := err.(*Violation)
			kinds[v.Rule]++
			fmt.Printf("seed %d %v: %s at %v %s\n", seed, time.Since(start), v.Rule, v.At, v.What)
			if n == 1 {
				fmt.Println(strings.Join(v.Tail, "\n"))
			}
			continue
		}
		if seed < 4 || n == 1 {
			fmt.Printf("seed %d nodes %d ok %v %+v\n", seed, r.Config.Nodes, time.Since(start), r.Stats)
		}
	}
	fmt.Println(kinds)
}
