package pgstories

import (
	"net/url"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/emitd/emitd/cmd/emitd/internal/story"
	"github.com/emitd/emitd/internal/pgtest"
)

// withServer runs the tests and stops the server that they started.
type withServer struct{ *testing.M }

func (m withServer) Run() int { return pgtest.Run(m.M) }

func TestMain(m *testing.M) { story.Main(withServer{m}) }

// TestStories runs the scripts in testdata, each on a new database ($STORE), which other variables reach
// in other ways.
func TestStories(t *testing.T) {
	t.Parallel()
	story.Run(t, "testdata", func(env *testscript.Env) string {
		tb := env.T().(testing.TB)
		store := pgtest.Database(tb)
		env.Setenv("ROLE_STORE", pgtest.WithUser(store, pgtest.Role(tb, store), "secret"))
		env.Setenv("STRANGER_STORE", pgtest.WithUser(store, "nobody_at_all", "hunter2hunter2"))
		env.Setenv("POOLED_STORE", pgtest.Pooler(tb, store))
		env.Setenv("MISSING_STORE", with(tb, store, func(u *url.URL) { u.Path = "/nowhere_at_all" }))
		env.Setenv("READ_ONLY_STORE", with(tb, store, func(u *url.URL) {
			q := u.Query()
			q.Set("options", "-c default_transaction_read_only=on")
			u.RawQuery = strings.ReplaceAll(q.Encode(), "+", "%20") // libpq does not decode a plus
		}))
		return store
	})
}

// with returns the URL after change.
func with(tb testing.TB, text string, change func(*url.URL)) string {
	u, err := url.Parse(text)
	if err != nil {
		tb.Fatal(err)
	}
	change(u)
	return u.String()
}
