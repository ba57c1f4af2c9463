package planted

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestCombine: a program with several bugs has the one that the environment names, and none without it. What is not the body of a
// function, or has labels, is left out.
func TestCombine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module x\n")
	write("a.txt", "one\n")
	write("a.go", `package main

const two = 2

var said string

func say() {
	said += "a"
}

func sum(a, b int) int {
	return a + b
}

func last() int {
all:
	for {
		break all
	}
	return 0
}

func main() {
	say()
	println(said, sum(1, two), last())
}
`)
	bugs, err := parse(`
== says b
Rule
pkg TestIt
@ a.go
-	said += "a"
+	said += "b"

== says nothing
Rule
pkg TestIt
@ a.go
-	said += "a"
+	_ = said

== a difference
Rule
pkg TestIt
@ a.go
-	return a + b
+	return a - b

== a constant
Rule
pkg TestIt
@ a.go
-const two = 2
+const two = 3

== a label
Rule
pkg TestIt
@ a.go
-	return 0
+	return 1

== a text
Rule
pkg TestIt
@ a.txt
-one
+two
`)
	if err != nil {
		t.Fatal(err)
	}
	files, combined, err := combine(dir, bugs)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		write(name, text)
	}
	program := filepath.Join(dir, "x")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".")
	build.Dir = dir
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for bug, want := range map[string]string{
		"": "a 3 0\n", "says b": "b 3 0\n", "says nothing": " 3 0\n", "a difference": "a -1 0\n",
		"a constant": "", "a label": "", "a text": "", // left out
	} {
		if combined[bug] != (bug != "" && want != "") {
			t.Errorf("%q: combined is %v", bug, combined[bug])
		}
		if want == "" {
			continue
		}
		cmd := exec.CommandContext(t.Context(), program)
		cmd.Env = append(os.Environ(), bugVariable+"="+bug)
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != want {
			t.Errorf("%q: %q, %v; want %q", bug, out, err, want)
		}
	}
}
