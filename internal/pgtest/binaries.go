package pgtest

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Binaries returns the folder of Postgres' programs.
func Binaries() (string, error) {
	if dir := os.Getenv("EMITD_TEST_PG_BIN"); dir != "" {
		if !complete(dir) {
			return "", errMissing("initdb or postgres in EMITD_TEST_PG_BIN="+dir, Install)
		}
		return dir, nil
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		if dir := strings.TrimSpace(string(out)); complete(dir) {
			return dir, nil // the client's headers may be installed without the server
		}
	}
	dirs, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	slices.SortFunc(dirs, func(a, b string) int { return -cmp.Compare(major(a), major(b)) })
	for _, dir := range dirs {
		if complete(dir) {
			return dir, nil
		}
	}
	return "", errMissing("Postgres", Install)
}

func complete(dir string) bool {
	for _, name := range []string{"initdb", "postgres"} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.IsDir() {
			return false
		}
	}
	return true
}

// major reads the version from /usr/lib/postgresql/15/bin.
func major(dir string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
	return n
}
