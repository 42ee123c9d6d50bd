package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/fetch/signature/commit"
	"github.com/seed-26586806/backing-image-manager/reconcile/api"
	"github.com/seed-26586806/backing-image-manager/reconcile/config"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema/document"
)

// prepareUsage makes every usage error one line that suggests similar names, and sets the
// fields that are equal in all commands.
func prepareUsage(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	root.SetFlagErrorFunc(explainFlag)
	visitCommands(root, func(cmd *cobra.Command) {
		cmd.DisableFlagsInUseLine = true
		cmd.SuggestionsMinimumDistance = 2
		if cmd.HasSubCommands() {
			cmd.Args, cmd.RunE = rejectUnknown, requireCommand
		}
		if cmd.HasParent() && cmd.Parent().Name() == "completion" {
			cmd.Example = "  source <(" + root.Name() + " completion " + cmd.Name() + ")"
		}
	})
	root.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// visitCommands calls f for cmd and all commands below it.
func visitCommands(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, sub := range cmd.Commands() {
		visitCommands(sub, f)
	}
}

func rejectUnknown(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return suggest(fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath()), cmd.SuggestionsFor(args[0]))
}

func requireCommand(cmd *cobra.Command, _ []string) error {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return fmt.Errorf("%s needs a command: %s", cmd.CommandPath(), strings.Join(names, ", "))
}

func explainFlag(cmd *cobra.Command, err error) error {
	unknown, ok := errors.AsType[*pflag.NotExistError](err)
	if !ok {
		return err
	}
	var names []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near, ok := document.Nearest(unknown.GetSpecifiedName(), names); ok {
		return suggest(err, []string{"--" + near})
	}
	return err
}

// suggest adds similar names, if there are any, to an error about an unknown name.
func suggest(err error, names []string) error {
	if len(names) == 0 {
		return err
	}
	return fmt.Errorf("%w: did you mean %s?", err, strings.Join(names, " or "))
}

// exactArgs requires one argument for each of the names.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		given := "1 was given"
		if len(args) != 1 {
			given = fmt.Sprintf("%d arguments were given", len(args))
		}
		return fmt.Errorf("%s takes %s, but %s", cmd.CommandPath(), cmp.Or(strings.Join(names, " "), "no arguments"), given)
	}
}

// needArgs requires at least one argument. Without an argument, the error is message.
func needArgs(message string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) == 0 {
			return errors.New(message)
		}
		return nil
	}
}

// choice is the value of a flag that must be one of a few words.
type choice[T ~string] struct {
	value   T
	allowed []T
}

func (c *choice[T]) String() string { return string(c.value) }

// Type returns what the help shows as the value.
func (c *choice[T]) Type() string { return strings.Join(c.words(), "|") }

func (c *choice[T]) words() []string {
	words := make([]string, len(c.allowed))
	for i, value := range c.allowed {
		words[i] = string(value)
	}
	return words
}

// Set accepts one of the allowed words.
func (c *choice[T]) Set(word string) error {
	if !slices.Contains(c.allowed, T(word)) {
		return fmt.Errorf("must be one of %s", strings.Join(c.words(), ", "))
	}
	c.value = T(word)
	return nil
}

// outputFlag adds -o with the formats of a command. The first format is the default.
func outputFlag(cmd *cobra.Command, formats ...report.Format) *choice[report.Format] {
	return choiceFlag(cmd, "output", "o", "output format", formats...)
}

// choiceFlag adds a flag with these values. The first value is the default.
func choiceFlag[T ~string](cmd *cobra.Command, name, short, usage string, allowed ...T) *choice[T] {
	c := &choice[T]{value: allowed[0], allowed: allowed}
	cmd.Flags().VarP(c, name, short, usage)
	complete := cobra.FixedCompletions(c.words(), cobra.ShellCompDirectiveNoFileComp)
	if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
		panic("register completion of --" + name + ": " + err.Error())
	}
	return c
}

// complete makes shells complete the values of flags with mark, which is (*cobra.Command).MarkFlagDirname, or completeJSON for files.
func complete(cmd *cobra.Command, mark func(*cobra.Command, string) error, flags ...string) {
	for _, name := range flags {
		if err := mark(cmd, name); err != nil {
			panic("mark --" + name + ": " + err.Error())
		}
	}
}

func completeJSON(cmd *cobra.Command, name string) error { return cmd.MarkFlagFilename(name, "json") }

// addTLSFlags adds the flags for the TLS files. The arguments cert and ca are the usage texts of
// --tls-cert and --tls-ca.
func addTLSFlags(cmd *cobra.Command, f *auth.TLSFiles, cert, ca string) {
	cmd.Flags().StringVar(&f.Cert, "tls-cert", "", cert)
	cmd.Flags().StringVar(&f.Key, "tls-key", "", "PEM `FILE` with the private key of --tls-cert")
	cmd.Flags().StringVar(&f.CA, "tls-ca", "", ca)
}

const defaultURL = "http://localhost:8000"

// daemonFlags name the daemon that a command calls, and the credentials for it.
type daemonFlags struct {
	url       string
	tokenFile string
	tls       auth.TLSFiles
}

func (f *daemonFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.url, "url", defaultURL, "`URL` of the daemon")
	cmd.Flags().StringVar(&f.tokenFile, "token-file", "", "`FILE` with the token to send to the daemon")
	addTLSFlags(cmd, &f.tls, "PEM `FILE` with the client certificate", "PEM `FILE` with the authority of the daemon's certificate (default: the authorities of the system)")
}

func (f *daemonFlags) client() (*api.Client, error) { return api.NewClient(f.url, f.tokenFile, f.tls) }

// status returns the status of the daemon.
func (f *daemonFlags) status(ctx context.Context) (status.Status, error) {
	c, err := f.client()
	if err != nil {
		return status.Status{}, err
	}
	return c.Status(ctx)
}

// nodeFlags name the configuration, the node that a command acts for, and its disks.
type nodeFlags struct {
	secretFlags
	configDir string
	node      string
	disks     []string

	commits *config.SignedCommits // nil after resolve means that commits need no signature
}

func (f *nodeFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.configDir, "config-dir", "", "config directory `DIR` (required)")
	flags.StringVar(&f.node, "node", "", "act for the node `NAME` (default: $NODE_NAME, then the host name)")
	flags.StringArrayVar(&f.disks, "disk", nil, "use the disk at `PATH`; if nodes are declared, it must be a disk of this node; may be repeated")
	f.secretFlags.add(cmd, "images")
	f.commits = &config.SignedCommits{}
	flags.StringVar(&f.commits.KeysDir, "require-signed-commits", "", "accept only configurations from a git checkout whose commit is signed by a key in `DIR`")
	flags.StringArrayVar(&f.commits.AllowOlder, "allow-older-commit", nil, "with --require-signed-commits, accept `COMMIT` although it does not descend from the last accepted commit; may be repeated")
	complete(cmd, (*cobra.Command).MarkFlagDirname, "config-dir", "disk", "require-signed-commits")
}

// findRepeated returns the first path whose key equals the key of an earlier path. A key is, for example,
// the name of the file.
func findRepeated(paths []string, key func(path string) string) (path string, found bool) {
	seen := map[string]bool{}
	for _, path := range paths {
		if seen[key(path)] {
			return path, true
		}
		seen[key(path)] = true
	}
	return "", false
}

// checkFolder checks that the folder of a flag exists, if the flag is given.
func checkFolder(flag, dir string) error {
	if dir == "" {
		return nil
	}
	if _, err := os.Stat(dir); err != nil {
		return fmt.Errorf("read --%s: %w", flag, err)
	}
	return nil
}

// secretFlags name the folders with secrets and keys.
type secretFlags struct{ secretsDir, keysDir string }

// add adds the flags. The help of --keys-dir ends with the argument signed: what the keys verify.
func (f *secretFlags) add(cmd *cobra.Command, signed string) {
	cmd.Flags().StringVar(&f.secretsDir, "secrets-dir", "", "`DIR` with the folders of credentials")
	cmd.Flags().StringVar(&f.keysDir, "keys-dir", "", "`DIR` with the folders of public keys for signatures of "+signed)
	complete(cmd, (*cobra.Command).MarkFlagDirname, "secrets-dir", "keys-dir")
}

// checkCommitFlags checks the flags for signed commits.
func (f *nodeFlags) checkCommitFlags() error {
	rules := f.commits
	if rules.KeysDir == "" {
		if len(rules.AllowOlder) > 0 {
			return errors.New("--allow-older-commit needs --require-signed-commits: give both")
		}
		f.commits = nil
		return nil
	}
	if _, err := commit.ReadKeys(rules.KeysDir); err != nil {
		return fmt.Errorf("read --require-signed-commits: %w", err)
	}
	for i, text := range rules.AllowOlder {
		name, err := config.ParseCommit(text)
		if err != nil {
			return fmt.Errorf("--allow-older-commit: %w", err)
		}
		rules.AllowOlder[i] = name
	}
	return nil
}

// resolve checks the flags and sets the defaults.
func (f *nodeFlags) resolve() error {
	if f.configDir == "" {
		return errors.New("--config-dir is missing: name the config directory")
	}
	if err := cmp.Or(checkFolder("secrets-dir", f.secretsDir), checkFolder("keys-dir", f.keysDir), f.checkCommitFlags()); err != nil {
		return err
	}
	if path, found := findRepeated(f.disks, filepath.Clean); found {
		return fmt.Errorf("--disk %s is given twice: name each disk once", path)
	}
	if f.node == "" {
		f.node = os.Getenv("NODE_NAME")
	}
	if f.node != "" {
		return nil
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("get the host name: %w: name this node with --node", err)
	}
	f.node = host
	return nil
}
