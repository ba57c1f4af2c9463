package drill

import (
	"context"
	"database/sql"
	"strings"
	"syscall"
	"time"

	_ "modernc.org/sqlite" // to see whether a file can be written
)

// Freeze sends SIGSTOP at a moment when the process is not inside a write transaction of SQLite. A
// process stopped inside one blocks all other writers until it continues or ends, which is a stated
// limit.
func (n *Node) Freeze() {
	n.c.T.Helper()
	path, file := strings.CutPrefix(n.c.URL, "sqlite://")
	n.c.Until(time.Minute, n.Name+" is stopped outside a transaction", func() bool {
		n.Signal(syscall.SIGSTOP)
		if !file || writable(path) {
			return true
		}
		n.Signal(syscall.SIGCONT)
		return false
	})
}

// writable reports whether the file can be written within the time that other writers wait.
func writable(path string) bool {
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(200)&_txlock=immediate")
	if err != nil {
		return false
	}
	defer db.Close()
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		return false
	}
	return tx.Rollback() == nil
}
