package pgerror_test

import (
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/pgerror"
)

func TestCheck(t *testing.T) {
	t.Parallel()
	for text, good := range map[string]bool{
		"host=h password='a b' dbname=d": true, "host=h password='secret": false, "host=h pass word": false, "postgres://h/d?pool_max_conns=x": false,
		"postgres://h/d?sslmode=verify-full&sslrootcert=/nowhere/s3cr3t": false, "postgres://u:p@h/d": true,
	} {
		err := pgerror.Check(text)
		if (err == nil) != good {
			t.Errorf("%q: %v", text, err)
		}
		if err != nil && (strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "s3cr3t")) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
