package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/seed-26586806/backing-image-manager/fetch"
	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/fetch/peer"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/api"
)

const (
	defaultListen   = "127.0.0.1:8000"
	defaultInterval = 10 * time.Second
	minInterval     = 100 * time.Millisecond
	minRoundAge     = 5 * time.Minute // the least api.Options.MaxRoundAge
	shutdownTimeout = 5 * time.Second
)

// daemonCmd is one run of the command daemon.
type daemonCmd struct {
	nodeFlags
	listen    string
	interval  time.Duration
	fileRoots []string
	tokenFile string
	tls       auth.TLSFiles
	insecure  bool
	webPrefix string
	log       logOptions
}

func newDaemon() *cobra.Command {
	d := &daemonCmd{}
	cmd := &cobra.Command{
		Use:   "daemon --config-dir DIR [flags]",
		Short: "Keep the disks of this node in the declared state until it is stopped",
		Long: `Reconciles the disks of one node with the config directory: at the start, on every
change of the directory, on every change of a peer, and every --interval. SIGTERM and
SIGINT stop it with exit status 0. Incomplete transfers are kept, and the next start
resumes them. SIGHUP opens --log-file again, and does nothing else.

On --listen it serves a web page at /, GET /healthz, /readyz, /metrics, /v1/status and
/v1/images/NAME/download, POST /v1/images/NAME/verify, /v1/images/NAME/cleanup and
/v1/images/NAME/retry, uploads with the protocol tus 1.0 at /v1/uploads, and the
requests of other managers.
Without TLS and tokens it listens on loopback only. There every local caller has the
role admin, except web pages.

With TLS, a client certificate of the authority --tls-ca has the role peer, which may
read. If its subject has the organization backing-image-manager:admin, it also has
the role admin, which may change state. --token-file contains one token for both
roles, or lines of "peer TOKEN" and "admin TOKEN". /healthz and the status code of
/readyz need no role. The daemon reads all of these files again when they change.`,
		Example: `  backing-image-manager daemon --config-dir config --disk /var/lib/longhorn
  backing-image-manager daemon --config-dir /etc/images --node node1 --listen 10.0.0.1:8000 --token-file /etc/token
  backing-image-manager daemon --config-dir /etc/images --listen 10.0.0.1:8000 --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt`,
		Args: exactArgs(),
	}
	d.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&d.listen, "listen", defaultListen, "serve HTTP on `ADDR`; an address other than loopback needs TLS, --token-file or --insecure")
	flags.DurationVar(&d.interval, "interval", defaultInterval, "longest time between two rounds")
	flags.StringArrayVar(&d.fileRoots, "allow-file-root", nil, "allow sources and backup targets that are files below `DIR`; may be repeated")
	flags.StringVar(&d.tokenFile, "token-file", "", "`FILE` with the tokens of callers, and the token to send to peers")
	addTLSFlags(cmd, &d.tls, "PEM `FILE` with the certificate of this daemon, as server and as client of peers", "PEM `FILE` with the authority of the certificates of callers and peers")
	flags.BoolVar(&d.insecure, "insecure", false, "without TLS and tokens, give every caller that can connect the role admin")
	flags.StringVar(&d.webPrefix, "web-prefix", "", "also serve the web page and all other paths below the prefix `PATH`, such as /backing-images, for a reverse proxy")
	flags.StringVar(&d.log.file, "log-file", "", "also log to `FILE`, as JSON")
	format := choiceFlag(cmd, "log-format", "", "log format on stderr; auto is text on a terminal, otherwise json", autoLog, textLog, jsonLog)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		d.log.format = format.value
		return d.run(cmd.Context())
	}
	return cmd
}

func (d *daemonCmd) run(ctx context.Context) (err error) {
	if err := errors.Join(d.resolve(), d.resolveRoots()); err != nil {
		return err
	}
	if d.interval < minInterval {
		return fmt.Errorf("--interval is %v: the minimum is %v", d.interval, minInterval)
	}
	if err := errors.Join(d.tls.CheckServer(), checkWebPrefix(d.webPrefix)); err != nil {
		return err
	}
	log, done, err := d.log.open(os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // by default, it ends the process
	defer signal.Stop(hangups)
	credentials, err := auth.Load(log, d.tokenFile, d.tls)
	if err != nil {
		return err
	}
	authorizer, err := auth.NewAuthorizer(credentials, d.listen, d.insecure)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", d.listen)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("listen on %s: the address is in use: stop the other program if it is a daemon for these disks, or choose another address with --listen", d.listen)
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w", d.listen, err)
	}
	limitGarbage()
	log.Info("listening", "address", listener.Addr().String(), "version", version())
	client := fetch.Client{SecretsDir: d.secretsDir, KeysDir: d.keysDir, FileRoots: d.fileRoots, Warn: logWarning(log)}
	loop := reconcile.NewLoop(reconcile.New(client, peer.NewClient(credentials.ForPeers()), log, false), reconcile.LoopOptions{
		Dir: d.configDir, Interval: d.interval, Node: d.node, Disks: d.disks, Log: log,
		SignedCommits: d.commits, Client: client,
	})
	s := api.NewServer(loop, authorizer, api.Options{MaxRoundAge: max(minRoundAge, 10*d.interval), WebPrefix: d.webPrefix, ConfigDir: d.configDir}, log)
	return d.serve(ctx, loop, s, listener, log, hangups)
}

// checkWebPrefix checks that --web-prefix is a plain path, because it becomes part of links.
func checkWebPrefix(prefix string) error {
	if prefix != "" && !regexp.MustCompile(`^(/[A-Za-z0-9_-]+)+$`).MatchString(prefix) {
		return fmt.Errorf("--web-prefix is %q: write a path like /backing-images, without a slash at its end", prefix)
	}
	return nil
}

// resolveRoots makes the folders of --allow-file-root absolute, because the paths of sources are absolute.
func (d *daemonCmd) resolveRoots() error {
	for i, root := range d.fileRoots {
		abs, err := filepath.Abs(root)
		if err != nil {
			return fmt.Errorf("resolve --allow-file-root: %w", err)
		}
		d.fileRoots[i] = abs
	}
	return nil
}

// serve runs the loop and the server until ctx is done or one of them fails.
func (d *daemonCmd) serve(ctx context.Context, loop *reconcile.Loop, s *http.Server, l net.Listener, log *slog.Logger, hangups <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all, ctx := errgroup.WithContext(ctx)
	s.BaseContext = func(net.Listener) context.Context { return ctx } // ends the long polls of peers at shutdown
	all.Go(func() error {
		defer cancel()
		return loop.Run(ctx)
	})
	all.Go(func() error {
		d.log.reopen(ctx, hangups, log)
		return nil
	})
	all.Go(func() error {
		serve := s.Serve
		if s.TLSConfig != nil {
			serve = func(l net.Listener) error { return s.ServeTLS(l, "", "") } // TLSConfig has the certificate
		}
		if err := serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", d.listen, err)
		}
		return nil
	})
	all.Go(func() error {
		<-ctx.Done()
		log.Info("stopping; incomplete transfers are kept")
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if s.Shutdown(end) != nil {
			return s.Close() // a slow request is still open
		}
		return nil
	})
	return all.Wait()
}
