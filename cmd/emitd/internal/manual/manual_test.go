package manual

import (
	"testing"

	"github.com/spf13/cobra"
)

// TestPages compares the pages of a small tree, with what roff could take for its own.
func TestPages(t *testing.T) {
	t.Parallel()
	root := &cobra.Command{Use: "prog", Short: "Do things…"}
	root.PersistentFlags().StringP("store", "s", "", "where: `URL` of a store")
	group := &cobra.Command{Use: "node", Short: "Act on nodes", Run: func(*cobra.Command, []string) {}}
	ls := &cobra.Command{
		Use: "ls NAME", Short: "List nodes", Long: "List nodes.\n.so /etc/passwd\n\nA \\fBsecond\\fP one,\n'quoted'.",
		Run: func(*cobra.Command, []string) {},
	}
	ls.Flags().Int("limit", 7, "most nodes")
	ls.Flags().Bool("hidden", false, "not shown")
	_ = ls.Flags().MarkHidden("hidden")
	root.AddCommand(group, &cobra.Command{Use: "secret", Hidden: true, Run: func(*cobra.Command, []string) {}})
	group.AddCommand(ls)
	want := []Page{
		{"prog.1", `.TH "PROG" 1 "" "emitd 1.2\-x" "emitd manual"
.nh
.ad l
.SH "NAME"
prog \- Do things\[u2026]
.SH "SYNOPSIS"
.B prog COMMAND
[\fIflags\fP]
.SH "DESCRIPTION"
Do things\[u2026].
.SH "COMMANDS"
.TP
\fBprog node\fP
Act on nodes
.SH "OPTIONS OF EVERY COMMAND"
.TP
\fB\-s\fP, \fB\-\-store\fP \fIURL\fP
where: URL of a store
.SH "EXIT STATUS"
The codes:
.TP
\fB0\fP
fine
.SH "SEE ALSO"
.BR prog\-node (1)
`},
		{"prog-node.1", `.TH "PROG\-NODE" 1 "" "emitd 1.2\-x" "emitd manual"
.nh
.ad l
.SH "NAME"
prog\-node \- Act on nodes
.SH "SYNOPSIS"
.B prog node COMMAND
[\fIflags\fP]
.SH "DESCRIPTION"
Act on nodes.
.SH "COMMANDS"
.TP
\fBprog node ls\fP
List nodes
.SH "SEE ALSO"
.BR prog (1),
.BR prog\-node\-ls (1)
`},
		{"prog-node-ls.1", `.TH "PROG\-NODE\-LS" 1 "" "emitd 1.2\-x" "emitd manual"
.nh
.ad l
.SH "NAME"
prog\-node\-ls \- List nodes
.SH "SYNOPSIS"
.B prog node ls NAME
[\fIflags\fP]
.SH "DESCRIPTION"
List nodes.
\&.so /etc/passwd
.PP
A \efBsecond\efP one,
\&'quoted'.
.SH "OPTIONS"
.TP
\fB\-\-limit\fP \fIint\fP
most nodes (default 7)
.SH "SEE ALSO"
.BR prog (1),
.BR prog\-node (1)
`},
	}
	got := Pages(root, Info{Version: "1.2-x", Sections: [][2]string{{"EXIT STATUS", "The codes:\n\n0\tfine"}}})
	if len(got) != len(want) {
		t.Fatalf("%d pages, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %s:\n%s\nwant %s:\n%s", got[i].Name, got[i].Text, want[i].Name, want[i].Text)
		}
	}
}
