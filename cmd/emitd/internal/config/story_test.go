package config

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"

	"github.com/emitd/emitd/internal/admin/fault"
)

var update = flag.Bool("update", false, "write what came out into the stories")

// TestStories loads the configuration of each archive in testdata and compares the result: the faults, or
// the settings that are not defaults. An archive has the files emitd.yaml, env (NAME=value lines), flags
// (path=value lines), serving (an empty marker), secret files, and want.
func TestStories(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("no stories: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			story(t, file)
		})
	}
}

func story(t *testing.T, file string) {
	ar, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	parts := map[string]string{}
	for _, f := range ar.Files {
		parts[f.Name] = string(f.Data)
	}
	got := report(Load(input(parts)))
	if *update {
		setPart(ar, "want", got)
		if err := os.WriteFile(file, txtar.Format(ar), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want := parts["want"]; got != want {
		t.Errorf("%s\ngot:\n%swant:\n%s", bytes.TrimSpace(ar.Comment), got, want)
	}
}

func setPart(ar *txtar.Archive, name, text string) {
	for i := range ar.Files {
		if ar.Files[i].Name == name {
			ar.Files[i].Data = []byte(text)
			return
		}
	}
	ar.Files = append(ar.Files, txtar.File{Name: name, Data: []byte(text)})
}

func input(parts map[string]string) Input {
	in := Input{
		Flags:    map[string]string{},
		Hostname: func() (string, error) { return "host-1", nil },
		ReadFile: func(name string) ([]byte, error) {
			if name == DefaultFile {
				name = "emitd.yaml"
			}
			if text, ok := parts[strings.TrimPrefix(name, "/")]; ok {
				return []byte(text), nil
			}
			return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
		},
	}
	in.File = strings.TrimSpace(parts["file"])
	in.Environ = strings.Split(strings.TrimSpace(parts["env"]), "\n")
	_, in.Serving = parts["serving"]
	for line := range strings.Lines(parts["flags"]) {
		path, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		in.Flags[path] = value
	}
	return in
}

// report returns the result of a load as emitd would show it.
func report(l *Loaded, err error) string {
	var b strings.Builder
	if err != nil {
		fault.Write(&b, err)
		return b.String()
	}
	for _, s := range l.Settings() {
		if s.Origin == "default" {
			continue
		}
		fmt.Fprintf(&b, "%s = %s  <- %s", s.Key, s.Value, s.Origin)
		for _, o := range s.Overrides {
			fmt.Fprintf(&b, " (%s says %s)", o, o.Text)
		}
		if s.Note != "" {
			fmt.Fprintf(&b, " [%s]", s.Note)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func TestEveryFaultHasAKnownCode(t *testing.T) {
	t.Parallel()
	files, _ := filepath.Glob("testdata/*.txtar")
	seen := map[fault.Code]bool{}
	for _, file := range files {
		ar, err := txtar.ParseFile(file)
		if err != nil {
			t.Fatal(err)
		}
		parts := map[string]string{}
		for _, f := range ar.Files {
			parts[f.Name] = string(f.Data)
		}
		_, err = Load(input(parts))
		var list fault.List
		if err != nil && !errors.As(err, &list) {
			t.Errorf("%s: not a fault list: %v", file, err)
		}
		for _, f := range list {
			if _, ok := fault.Lookup(f.Code); !ok {
				t.Errorf("%s: code %s is not in the catalogue", file, f.Code)
			}
			seen[f.Code] = true
		}
	}
	for _, e := range fault.All() {
		if e.Code > fault.Usage && e.Code < fault.CannotListen && !seen[e.Code] {
			t.Errorf("no story provokes %s (%s)", e.Code, e.Title)
		}
	}
}
