// Make runs a cluster with the binary of a release and keeps what it stored as the fixtures of that release.
//
//	go run ./stored/make -source /path/to/a/checkout/of/the/release -out stored/testdata/v1.2.3
//
// It builds emitd and program observe in that checkout, and changes nothing there. It needs Go, Linux and
// Postgres (make deps). It takes about a minute.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/emitd/emitd/e2e/stored"
)

func main() {
	source := flag.String("source", "..", "the checkout of the release")
	out := flag.String("out", "", "the folder of the fixtures")
	flag.Parse()
	if err := run(*source, *out); err != nil {
		fmt.Fprintln(os.Stderr, "make:", err)
		os.Exit(1)
	}
}

func run(source, out string) (err error) {
	if out == "" {
		return errors.New("-out says where to write the fixtures")
	}
	dir, err := os.MkdirTemp("", "stored-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := build(source, dir); err != nil {
		return err
	}
	for _, kind := range stored.Kinds {
		work := filepath.Join(dir, string(kind))
		if err := os.Mkdir(work, 0o755); err != nil {
			return err
		}
		to := filepath.Join(out, string(kind))
		if err := os.MkdirAll(to, 0o755); err != nil {
			return err
		}
		place, err := prepare(kind, work)
		if err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		err = record(kind, place, dir, work, to)
		if err := errors.Join(err, place.close()); err != nil {
			return fmt.Errorf("%s: %w", kind, err)
		}
		fmt.Println("made", to)
	}
	return nil
}

// build makes emitd and observe from the sources of the release. Observe is laid over its tree.
func build(source, dir string) error {
	source, err := filepath.Abs(source)
	if err != nil {
		return err
	}
	program, err := filepath.Abs(filepath.Join("stored", "observe", "main.go"))
	if err != nil {
		return err
	}
	overlay, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(source, "cmd", "observe", "main.go"): program}})
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(file, overlay, 0o600); err != nil {
		return err
	}
	for _, name := range []string{"emitd", "observe"} {
		cmd := exec.Command("go", "build", "-overlay", file, "-o", filepath.Join(dir, name), "./cmd/"+name)
		cmd.Dir = source
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, text)
		}
	}
	return nil
}

// record plays the scene, and writes what is stored then and what the release reads in it.
func record(kind stored.Kind, p *place, programs, work, to string) error {
	s, err := newScene(kind, p, programs, work)
	if err != nil {
		return err
	}
	defer s.end()
	if err := s.play(); err != nil {
		return err
	}
	if err := s.readStores(); err != nil {
		return err
	}
	facts, err := json.Marshal(s.facts)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(to, stored.FactsFile), append(facts, '\n'), 0o600); err != nil {
		return err
	}
	return p.save(to)
}
