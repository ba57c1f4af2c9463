// Package cli is emitd's command line.
//
// What scripts may rely on:
//
//   - Data goes to standard output, messages to standard error.
//   - The exit code is 0 ok, 1 failed, 2 wrong usage or configuration, 3 not found, 4 store unreachable,
//     5 conflict (a term has moved on), 6 degraded; see package fault.
//   - Every read takes -o table, wide, json, jsonl, yaml or name. Tables show ages and may change with a
//     version. JSON shows times in RFC 3339 UTC and keeps its fields.
//   - A read with --watch repeats itself until it is interrupted, which is a success. Its JSON is one document per
//     line.
//   - Reads and operators' commands work on the store itself (--store URL), so they need no running node.
//     Only the commands of queue, except adopt, verify and repair, call a node. If no store is named, the
//     state of an emitd dev in the current directory is used.
//   - Reads of the cluster and of the outbox and operators' commands ask a node instead if --addr names one, for whoever
//     may not reach the store. They print the same.
//   - A command that ends, removes or repeats something that others rely on (a term, jobs, a queue,
//     deliveries) states its effect and asks first; --yes skips the question. Without --yes and without a
//     terminal to ask on, the command does nothing.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/terminal"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/queue"
)

// Streams are the inputs and outputs of a run of the program.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	Environ  []string
}

// Main runs the program and returns its exit code. ctx ends when the program should. Main does not handle
// signals, except that a second one can force the end.
func Main(ctx context.Context, args []string, s Streams) int {
	a := &app{Streams: s}
	root := a.root()
	root.SetArgs(args)
	root.SetOut(s.Out)
	root.SetErr(s.Err)
	err := root.ExecuteContext(ctx)
	a.progress.End()
	if err == nil {
		return fault.ExitOK
	}
	err = a.asFault(err)
	fault.Write(s.Err, err, a.secrets...)
	return fault.Exit(err)
}

// app is one run of the program.
type app struct {
	Streams
	flags   map[string]*flagValue // by name
	ran     bool                  // the arguments were valid
	secrets []string              // of the configuration that was loaded

	node    nodeFlags
	output  string
	timeout time.Duration
	noColor bool
	quiet   bool
	yes     bool

	watching *watch     // --watch is given and repeats the command
	kept     *keptStore // of a command that reads again and again; nil: each read opens the store

	progress *terminal.Progress // nil: none is shown
	streams  Streams            // those before progress has wrapped them

	began   time.Time // of the command, or of this read of --watch
	bounded bool      // the command ends after timeout at the latest
}

// asFault turns errors into faults. An error before a command runs is always a mistake of usage.
func (a *app) asFault(err error) error {
	if list := fault.List(nil); errors.As(err, &list) {
		return list
	}
	if !a.ran && !errors.As(err, new(*fault.Fault)) {
		return fault.New(fault.Usage, "%s", firstLine(err.Error()))
	}
	return a.timeoutFault(backend.Fault(err), err)
}

// timeoutFault replaces the fault of a call that --timeout cut off by one that says so, because then nothing is
// known to be wrong with the store.
func (a *app) timeoutFault(f *fault.Fault, err error) error {
	if f.Code != fault.Unreachable || !a.bounded || !errors.Is(err, context.DeadlineExceeded) || time.Since(a.began) < a.timeout {
		return f
	}
	return fault.New(fault.Unreachable, "no answer within --timeout %v: %s", a.timeout, strings.TrimPrefix(f.What, "store unreachable: ")).
		Hint("allow more time, such as --timeout 30s; if that does not help: %s", f.Advice())
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(s, "\n")
	return line
}

// flagValue is the text given for a key. It counts only if given is set.
type flagValue struct {
	path  string
	text  string
	given bool
	kind  string
}

func (f *flagValue) String() string { return f.text }
func (f *flagValue) Type() string   { return f.kind }
func (f *flagValue) Set(s string) error {
	f.text, f.given = s, true
	return nil
}

// flagAliases maps the flags that have a shorter name to their key.
var flagAliases = map[string]string{"store": "store.url", "objects": "objects.url", "node-name": "node.name"}

// shownFlags lists the flags that help shows. Every other key is a flag as well.
var shownFlags = []string{"store", "objects", "node-name", "listen", "profile", "cluster", "insecure"}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "emitd",
		Short: "Elect a leader, assign daemons to nodes, run them",
		Long: "emitd turns the processes that use one store into a cluster: they elect a leader, the leader assigns daemons to\n" +
			"nodes, and every node runs the units assigned to it and drains those that are revoked.\n\n" +
			"Start with emitd dev: three nodes in one process, without any other service.",
		SilenceErrors: true, SilenceUsage: true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		Args:              noSuchCommand,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			a.began, a.bounded = time.Now(), cmd.Name() != "serve" && cmd.Name() != "dev"
			if err := a.checkFlags(); err != nil {
				return err
			}
			if a.bounded {
				a.startProgress(cmd.CommandPath())
			}
			return nil
		},
	}
	version := root.Flags().Bool("version", false, "show the version of this program, as emitd version does")
	root.RunE = func(cmd *cobra.Command, _ []string) error {
		if *version {
			return a.showVersion()
		}
		return cmd.Help()
	}
	root.SetHelpCommand(helpCommand())
	root.SetFlagErrorFunc(flagError)
	a.bind(root.PersistentFlags())
	for _, c := range []*cobra.Command{
		a.serveCommand(), a.devCommand(),
		a.statusCommand(), a.topCommand(), a.clusterCommand(), a.nodeCommand(), a.daemonCommand(), a.leaderCommand(), a.lockCommand(), a.planCommand(), a.eventsCommand(), a.queueCommand(), a.outboxCommand(),
		a.migrateCommand(), a.configCommand(), a.doctorCommand(), a.checkCommand(),
		a.tokenCommand(), a.debugCommand(), a.errorCommand(), a.manCommand(), a.versionCommand(),
	} {
		root.AddCommand(c)
	}
	return root
}

// helpCommand does the same as --help, for users who expect a command.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND]", Short: "Show the help of a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err == nil {
				err = noSuchCommand(found, rest)
			}
			if err != nil {
				return err
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}

// noSuchCommand refuses arguments where a subcommand is expected.
func noSuchCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	f := fault.New(fault.Usage, "%s has no command %q", cmd.CommandPath(), args[0])
	if near := config.Nearest(args[0], commandNames(cmd)); near != "" {
		f.What += fmt.Sprintf("; did you mean %q?", near)
	}
	return f.Hint("see %s --help", cmd.CommandPath())
}

// group returns a command that only has subcommands.
func group(use, text string, commands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: text, Args: noSuchCommand, RunE: needsCommand}
	g.AddCommand(commands...)
	return g
}

func needsCommand(cmd *cobra.Command, _ []string) error {
	return fault.New(fault.Usage, "%s needs a command: %s", cmd.CommandPath(), strings.Join(commandNames(cmd), ", ")).
		Hint("see %s --help", cmd.CommandPath())
}

func commandNames(cmd *cobra.Command) []string {
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	return names
}

func flagError(cmd *cobra.Command, err error) error {
	f := fault.New(fault.Usage, "%s: %s", cmd.CommandPath(), firstLine(err.Error()))
	var bad *pflag.InvalidValueError
	if errors.As(err, &bad) {
		f.What = fmt.Sprintf("%s: --%s is %q, want %s", cmd.CommandPath(), bad.GetFlag().Name, bad.GetValue(), wanted(bad.GetFlag().Value.Type(), bad.GetValue()))
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := config.Nearest(unknown.GetSpecifiedName(), names); near != "" {
			f.What += fmt.Sprintf("; did you mean --%s?", near)
		}
	}
	return f.Hint("see %s --help", cmd.CommandPath())
}

// wanted describes the values that a flag of a type accepts.
func wanted(kind, value string) string {
	switch kind {
	case "duration":
		text := "a duration with its unit, such as 90s, 5m or 1h30m"
		if _, err := strconv.Atoi(value); err == nil {
			text += fmt.Sprintf("; did you mean %ss?", value)
		}
		return text
	case "int", "int64":
		return "a whole number"
	case "bool":
		return "true or false"
	}
	return "a " + kind
}

// bind adds a flag for every key of the configuration.
func (a *app) bind(flags *pflag.FlagSet) {
	a.flags = map[string]*flagValue{}
	keys := map[string]config.Key{}
	add := func(name string, k config.Key, hidden bool) {
		v := &flagValue{path: k.Path, kind: strings.ReplaceAll(k.Type, " or ", "|")}
		a.flags[name] = v
		f := flags.VarPF(v, name, "", k.Help)
		f.Hidden = hidden
		if k.Type == "true or false" {
			f.NoOptDefVal, v.kind = "true", "bool"
		}
	}
	isShown := map[string]bool{}
	for _, name := range shownFlags {
		isShown[name] = true
	}
	for _, k := range config.Keys() {
		keys[k.Path] = k
		add(k.Flag(), k, !isShown[k.Flag()])
	}
	for name, path := range flagAliases {
		add(name, keys[path], false)
	}
	flags.Var(a.metaFlag("config"), "config", "config file; also "+config.FileEnv+", else "+config.DefaultFile+" if there is one")
	flags.DurationVar(&a.timeout, "timeout", 10*time.Second, "longest duration of a read or of an operator's command")
	flags.BoolVar(&a.noColor, "no-color", false, "print without colours; also NO_COLOR")
	flags.BoolVarP(&a.quiet, "quiet", "q", false, "print only errors")
}

func (a *app) metaFlag(name string) *flagValue {
	a.flags[name] = &flagValue{kind: "file"}
	return a.flags[name]
}

// checkFlags refuses a key that is given under both of its names, and an invalid timeout. It records that
// the arguments are valid.
func (a *app) checkFlags() error {
	for name, path := range flagAliases {
		s, l := a.flags[name], a.flags[strings.ReplaceAll(path, "_", "-")]
		if s.given && l.given && s.text != l.text {
			return fault.New(fault.Usage, "--%s and --%s are the same setting and have different values", name, strings.ReplaceAll(path, "_", "-"))
		}
	}
	if a.timeout <= 0 {
		return fault.New(fault.Usage, "--timeout is %v, want more than 0", a.timeout)
	}
	a.ran = true
	return nil
}

// sinceFlag adds --since to a command. The default 0 means everything; an explicit value must be
// positive.
func sinceFlag(cmd *cobra.Command, since *time.Duration, text string) {
	cmd.Flags().DurationVar(since, "since", 0, text)
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if cmd.Flags().Changed("since") && *since <= 0 {
			return fault.New(fault.Usage, "--since is %v, want more than 0", *since)
		}
		return run(cmd, args)
	}
}

// input collects the sources of the configuration.
func (a *app) input() config.Input {
	in := config.Input{
		File: a.flags["config"].text, Environ: a.Environ,
		Flags: map[string]string{}, Flagged: map[string]string{},
	}
	for name, v := range a.flags {
		if v.given && v.path != "" {
			in.Flags[v.path] = v.text
			if _, ok := flagAliases[name]; ok {
				in.Flagged[v.path] = name
			}
		}
	}
	return in
}

// load loads the configuration and remembers its secrets.
func (a *app) load(in config.Input) (*config.Loaded, error) {
	cfg, err := config.Load(in)
	if err != nil {
		return nil, err
	}
	a.secrets = cfg.Secrets()
	return cfg, nil
}

// DevDir is the state directory of emitd dev. DevConfig is the file in it by which reads find the
// cluster.
const (
	DevDir    = ".emitd"
	DevConfig = "emitd.yaml"
)

// loadToRead loads the configuration of a command that reads a store. If none is named, it uses the state
// of an emitd dev in the current directory.
func (a *app) loadToRead() (*config.Loaded, error) {
	in := a.input()
	cfg, err := a.load(in)
	if err != nil || cfg.Store.URL != "" {
		return cfg, err
	}
	dev := DevDir + string(os.PathSeparator) + DevConfig
	if _, err := os.Stat(dev); err != nil || cfg.File != "" {
		return nil, fault.New(fault.StoreURL, "store.url is not set, and there is no emitd dev in this directory, so the cluster is not known")
	}
	in.File = dev
	return a.load(in)
}

// open opens the store for reading.
func (a *app) open(ctx context.Context, cfg *config.Loaded) (*backend.Store, error) {
	return backend.Open(ctx, backend.Options{Config: cfg.Config, Policy: backend.ReadOnly, Logger: a.commandLog(cfg)})
}

// reader returns the view.Reader for a snapshot of a store.
func reader(cfg *config.Loaded, s *backend.Store, all bool) view.Reader {
	return view.Reader{
		Cluster: cfg.Cluster, Store: s.Kind, Timing: cfg.Timing(), All: all,
		Queues: cfg.Objects.URL != "" && cfg.Runs(string(queue.Kind)),
	}
}

// message writes a message to standard error.
func (a *app) message(format string, args ...any) {
	if !a.quiet {
		fmt.Fprintf(a.Err, format+"\n", args...)
	}
}

// startProgress shows on a terminal that a command works, once it has taken a second. Commands that show themselves
// what they do, or that never end, call endProgress.
func (a *app) startProgress(text string) {
	if a.quiet || a.dumb() || !terminal.IsTerminal(a.Err) {
		return
	}
	a.streams, a.progress = a.Streams, terminal.StartProgress(a.Err, text)
	a.Out, a.Err = a.progress.Wrap(a.Out), a.progress.Wrap(a.Err)
}

// endProgress ends what startProgress has begun.
func (a *app) endProgress() {
	if a.progress != nil {
		a.progress.End()
		a.Streams, a.progress = a.streams, nil
	}
}

// awaitInput keeps progress away from what somebody types as the input of a command.
func (a *app) awaitInput() {
	if isTerminal(a.In) {
		a.progress.Pause()
	}
}

// isTerminal reports whether the stream is a terminal.
func isTerminal(stream any) bool {
	f, ok := stream.(interface{ Fd() uintptr })
	return ok && (isatty.IsTerminal(f.Fd()) || isatty.IsCygwinTerminal(f.Fd()))
}

// colours reports whether standard error may be coloured.
func (a *app) colours() bool {
	return !a.noColor && a.environ("NO_COLOR") == "" && isTerminal(a.Err)
}

// environ returns the value of a variable of the environment.
func (a *app) environ(name string) string {
	for _, kv := range a.Environ {
		if key, value, _ := strings.Cut(kv, "="); key == name {
			return value
		}
	}
	return ""
}
