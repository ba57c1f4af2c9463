package cli

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/emitd/emitd/cmd/emitd/internal/filelock"
	"github.com/emitd/emitd/internal/access"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
)

func (a *app) tokenCommand() *cobra.Command {
	t := &tokens{a: a}
	return group("token", "Make, list and revoke the tokens of the access file (api.tokens_file)", t.add(), t.list(), t.revoke())
}

// tokens are the commands about the access file.
type tokens struct {
	a    *app
	file string
}

func (t *tokens) flags(cmd *cobra.Command) *cobra.Command {
	cmd.Flags().StringVar(&t.file, "file", "", "the access file; api.tokens_file by default")
	return t.a.outputFlag(cmd)
}

// path returns the access file.
func (t *tokens) path() (string, error) {
	if t.file != "" {
		return t.file, nil
	}
	cfg, err := t.a.load(t.a.input())
	if err != nil {
		return "", err
	}
	if cfg.API.TokensFile == "" {
		return "", fault.New(fault.Usage, "api.tokens_file is not set, so there is no access file").
			Hint("name one: --file /etc/emitd/tokens, and set api.tokens_file on the nodes")
	}
	return cfg.API.TokensFile, nil
}

// read returns the text and the entries of the access file. A file that does not exist is empty.
func (t *tokens) read() (path, text string, entries []access.Entry, err error) {
	if path, err = t.path(); err != nil {
		return "", "", nil, err
	}
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return path, "", nil, fault.New(fault.AccessFile, "the access file: %w", err)
	}
	if entries, err = access.Parse(string(b)); err != nil {
		return path, "", nil, fault.New(fault.AccessFile, "the access file %s:%w", path, err)
	}
	return path, string(b), entries, nil
}

// newToken is a token after it was made, for scripts.
type newToken struct {
	Name      string    `json:"name"`
	Roles     string    `json:"roles"`
	ExpiresAt view.Time `json:"expires_at"`
	Token     string    `json:"token"`
	Line      string    `json:"line"` // for the access file
	File      string    `json:"file"` // that has the line now; empty: none
}

func (t *tokens) add() *cobra.Command {
	var roles []string
	var expires time.Duration
	var lineOnly bool
	cmd := &cobra.Command{
		Use: "new NAME", Short: "Make a token, and write its line into the access file",
		Long: "Make a token and print it: it is shown once, and no file has it. Its line is added to the access file. With\n" +
			"--print the line is printed instead, for a file that is made elsewhere, such as a Secret. Nodes read the file\n" +
			"within 10 s. A role is read, produce, consume, operate or admin, and may be limited to some queues and\n" +
			"subscriptions: operate@queue=mail.*@subscription=billing.",
		Args: exactly(1, "the name of the token"),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := makeToken(args[0], roles, expires, time.Now())
			if err != nil {
				return err
			}
			if !lineOnly {
				if n.File, err = t.write(cmd.Context(), args[0], n.Line); err != nil {
					return err
				}
			}
			return t.a.print(data{whole: n, names: []string{n.Token}, table: func(w io.Writer, _ bool) error {
				_, err := fmt.Fprintf(w, "%s\n", n.Token)
				if lineOnly {
					_, err = fmt.Fprintf(w, "%s\n", n.Line)
				}
				return err
			}})
		},
	}
	cmd.Flags().StringArrayVar(&roles, "role", []string{string(access.Read)}, "what the token may do; may be given several times")
	cmd.Flags().DurationVar(&expires, "expires", 0, "for how long the token is valid, such as 2160h; 0s: until it is revoked")
	cmd.Flags().BoolVar(&lineOnly, "print", false, "print the line too, and write no file")
	return t.flags(cmd)
}

// makeToken makes a token. Its 32 random bytes cannot be guessed.
func makeToken(name string, roles []string, expires time.Duration, now time.Time) (newToken, error) {
	secret := make([]byte, 32)
	if _, err := rand.Read(secret); err != nil {
		return newToken{}, fmt.Errorf("random bytes: %w", err)
	}
	n := newToken{Name: name, Token: "emitd_" + base64.RawURLEncoding.EncodeToString(secret)}
	e := access.EntryOf(n.Token)
	e.Name, e.Created = name, now
	if err := access.CheckName(name); err != nil {
		return n, fault.New(fault.Usage, "%w", err)
	}
	for _, text := range roles {
		g, err := access.ParseGrant(text)
		if err != nil {
			return n, fault.New(fault.Usage, "--role: %w", err)
		}
		e.Grants = append(e.Grants, g)
	}
	switch {
	case expires < 0:
		return n, fault.New(fault.Usage, "--expires is %v, want more than 0", expires)
	case expires > 0:
		e.Expires = now.Add(expires).Truncate(time.Second)
		n.ExpiresAt = view.Time{Time: e.Expires}
	}
	n.Roles, n.Line = e.Roles(), e.Line()
	return n, nil
}

// write adds a line to the access file.
func (t *tokens) write(ctx context.Context, name, line string) (string, error) {
	return t.change(ctx, func(_, text string, entries []access.Entry) (string, error) {
		if slices.ContainsFunc(entries, func(e access.Entry) bool { return e.Kind == access.Token && e.Name == name }) {
			return "", fault.New(fault.Usage, "the access file has a token with the name %s", name).
				Hint("revoke it first, or choose another name, so that both are valid for a while")
		}
		if text != "" && !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		return text + line + "\n", nil
	})
}

// change replaces the text of the access file by what edit makes of it, and returns the path. Changes wait for each
// other, for --timeout at most, because one that began with an older text would undo the other.
func (t *tokens) change(ctx context.Context, edit func(path, text string, entries []access.Entry) (string, error)) (path string, err error) {
	if path, err = t.path(); err != nil {
		return "", err
	}
	target := path
	if linked, err := filepath.EvalSymlinks(path); err == nil {
		target = linked
	}
	ctx, cancel := context.WithTimeout(ctx, t.a.timeout)
	defer cancel()
	err = filelock.While(ctx, target+".lock", func() error {
		_, text, entries, err := t.read()
		if err != nil {
			return err
		}
		if text, err = edit(path, text, entries); err != nil {
			return err
		}
		return replaceFile(target, text)
	})
	if f := (*fault.Fault)(nil); err != nil && !errors.As(err, &f) {
		err = fault.New(fault.AccessFile, "cannot write the access file: %w", err)
	}
	return path, err
}

// replaceFile replaces a file as a whole, with its mode and owner, so that a node never reads half of it, and can read
// it afterwards.
func replaceFile(path, text string) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) // without effect once it has its name
	_, err = f.WriteString(text)
	if old, e := os.Stat(path); e == nil {
		err = errors.Join(err, giveTo(f, old), f.Chmod(old.Mode().Perm()))
	}
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// listedToken is an entry of the access file, for scripts.
type listedToken struct {
	Name      string      `json:"name"` // empty: a token that the file has as it is sent
	Kind      access.Kind `json:"kind"`
	Roles     string      `json:"roles"`
	CreatedAt view.Time   `json:"created_at"`
	ExpiresAt view.Time   `json:"expires_at"`
	Expired   bool        `json:"expired"`
}

func (t *tokens) list() *cobra.Command {
	return t.flags(&cobra.Command{
		Use: "ls", Short: "List who may do what: the entries of the access file, without anything secret", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			_, _, entries, err := t.read()
			if err != nil {
				return err
			}
			var all []listedToken
			now := time.Now()
			for _, e := range entries {
				all = append(all, listedToken{e.Name, e.Kind, e.Roles(), view.Time{Time: e.Created}, view.Time{Time: e.Expires}, e.Expired(now)})
			}
			return t.a.print(list(all, func(e listedToken) string { return e.Name }, func(bool) *view.Table { return tokenTable(all) }))
		},
	})
}

func tokenTable(all []listedToken) *view.Table {
	table := &view.Table{Head: []string{"NAME", "KIND", "ROLES", "CREATED", "EXPIRES"}}
	day := func(t view.Time) string {
		if t.IsZero() {
			return "-"
		}
		return t.UTC().Format("2006-01-02 15:04Z")
	}
	for _, e := range all {
		name, expires := e.Name, day(e.ExpiresAt)
		if name == "" {
			name = "(as it is sent)"
		}
		if e.Expired {
			expires += " (expired)"
		}
		table.Add(name, string(e.Kind), e.Roles, day(e.CreatedAt), expires)
	}
	return table
}

func (t *tokens) revoke() *cobra.Command {
	cmd := &cobra.Command{
		Use: "revoke NAME", Short: "Remove a token, a certificate or a user from the access file",
		Long: "Remove an entry from the access file. Within 10 s each node that has this file refuses calls with it, and ends\n" +
			"those that are under way. Nodes that have a copy of the file need the new one.",
		Args: exactly(1, "the name of a token, certificate or user"),
		RunE: func(cmd *cobra.Command, args []string) error {
			removed, left := 0, 0
			remove := func(path, text string, entries []access.Entry) (rest string, err error) {
				rest, removed = without(text, args[0])
				if removed == 0 {
					return "", fault.New(fault.NoToken, "the access file %s has no entry with the name %.140q", path, args[0])
				}
				left = len(entries) - removed
				return rest, nil
			}
			path, text, entries, err := t.read()
			if err == nil {
				_, err = remove(path, text, entries)
			}
			if err != nil {
				return err
			}
			if err := t.a.confirm(fmt.Sprintf("calls by %s are refused, and those under way end", args[0])); err != nil {
				return err
			}
			if _, err := t.change(cmd.Context(), remove); err != nil {
				return err
			}
			if left == 0 {
				t.a.message("the access file has no entry any more: nodes refuse every call, and do not start before it has one")
			}
			whole := map[string]any{"name": args[0], "revoked": removed}
			return t.a.print(data{whole: whole, names: args, table: func(w io.Writer, _ bool) error {
				_, err := fmt.Fprintf(w, "revoked %s; nodes with this file refuse it within 10s\n", args[0])
				return err
			}})
		},
	}
	cmd.Flags().BoolVarP(&t.a.yes, "yes", "y", false, "do not ask for confirmation")
	return t.flags(cmd)
}

// without returns the text of an access file without the entries of a name, and how many these are. Comments stay.
func without(text, name string) (rest string, removed int) {
	var b strings.Builder
	for line := range strings.Lines(text) {
		trimmed := strings.TrimSpace(line)
		if trimmed != "" && !strings.HasPrefix(trimmed, "#") {
			if e, err := access.ParseLine(trimmed); err == nil && e.Name == name && name != "" {
				removed++
				continue
			}
		}
		b.WriteString(line)
	}
	return b.String(), removed
}
