// Package schema reads the steps of a versioned schema from files that are embedded in a program.
// An error in the files is a programming error, and panics.
package schema

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// Step is one step of a schema, from the version below its own.
type Step struct {
	Version int
	Name    string
	Up      string
	Down    string // empty where there is no way back
}

// Load reads files named migrations/NNN_name.up.sql, and the .down.sql files beside them. They
// must be numbered from 1 to newest.
func Load(files fs.FS, newest int) []Step {
	up, err := fs.Glob(files, "migrations/*.up.sql")
	if err != nil || len(up) != newest {
		panic(fmt.Sprintf("schema: %d migrations are embedded, want %d", len(up), newest))
	}
	out := make([]Step, len(up))
	for i, file := range up {
		base := strings.TrimSuffix(file, ".up.sql")
		number, name, _ := strings.Cut(path.Base(base), "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			panic("schema: migrations are not numbered from 1: " + file)
		}
		out[i] = Step{Version: i + 1, Name: name, Up: text(files, file), Down: text(files, base+".down.sql")}
	}
	return out
}

func text(files fs.FS, file string) string {
	b, err := fs.ReadFile(files, file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		panic("schema: " + err.Error())
	}
	return string(b)
}
