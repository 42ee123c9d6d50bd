package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
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
	minRoundAge     = 5 * time.Minute // a daemon with a younger round is ready
	shutdownTimeout = 5 * time.Second
)

// daemon is one run of the command daemon.
type daemon struct {
	nodeFlags
	listen    string
	interval  time.Duration
	fileRoots []string
	tokenFile string
	tls       auth.TLSFiles
	insecure  bool
	log       logOptions
}

func newDaemon() *cobra.Command {
	d := &daemon{}
	cmd := &cobra.Command{
		Use:   "daemon --config-dir DIR [flags]",
		Short: "Keep the disks of this node as the configuration says, until it is stopped",
		Long: `Keeps the disks of one node as the config directory says: at the start, on every
change of the directory, and every --interval. SIGTERM and SIGINT end it with exit
status 0; what was transferred is kept, and the next start goes on from there.

It answers GET /healthz, /readyz, /metrics, /v1/status and /v1/images/NAME/download,
and POST /v1/images/NAME/verify and cleanup, on --listen, takes uploads by the protocol
tus 1.0 at /v1/uploads, and answers what other managers ask. Without TLS or
tokens it listens on loopback only, where every caller may do everything, but for
web pages.

With TLS, a certificate of the authority --tls-ca has the role peer, which may read;
with the organization backing-image-manager:admin in its subject it has the role
admin too, which may ask for deeds. --token-file holds one token for both roles, or
a line of "peer TOKEN" or "admin TOKEN" each. /healthz and, but for
the reasons, /readyz are for everybody. All of these files are read again when they
change.`,
		Example: `  backing-image-manager daemon --config-dir config --disk /var/lib/longhorn
  backing-image-manager daemon --config-dir /etc/images --node node1 --listen 10.0.0.1:8000 --token-file /etc/token
  backing-image-manager daemon --config-dir /etc/images --listen 10.0.0.1:8000 --tls-cert tls.crt --tls-key tls.key --tls-ca ca.crt`,
		Args: exactly(),
	}
	d.add(cmd)
	flags := cmd.Flags()
	flags.StringVar(&d.listen, "listen", defaultListen, "answer HTTP at the `ADDR`; any other than loopback needs TLS, --token-file or --insecure")
	flags.DurationVar(&d.interval, "interval", defaultInterval, "look at the directory and the disks at least this often")
	flags.StringArrayVar(&d.fileRoots, "allow-file-root", nil, "images may be read from files below the `DIR`, and backups kept there; may be repeated")
	flags.StringVar(&d.tokenFile, "token-file", "", "callers may show a token that the `FILE` holds")
	addTLSFlags(cmd, &d.tls, "`FILE` with the certificate of this daemon, as PEM, for callers and for peers", "`FILE` with the authority that callers and peers have to have their certificates of, as PEM")
	flags.BoolVar(&d.insecure, "insecure", false, "without TLS or a token, let everybody in who can connect")
	flags.StringVar(&d.log.file, "log-file", "", "log to the `FILE` too, as JSON")
	format := choiceFlag(cmd, "log-format", "", "format of the log on stderr; auto is text on a terminal and json elsewhere", "auto", "text", "json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if d.log.format = format.word; format.word == "auto" {
			d.log.format = ""
		}
		return d.run(cmd.Context())
	}
	return cmd
}

func (d *daemon) run(ctx context.Context) (err error) {
	if err := errors.Join(d.resolve(), d.resolveRoots()); err != nil {
		return err
	}
	if d.interval < minInterval {
		return fmt.Errorf("--interval is %v: the least is %v", d.interval, minInterval)
	}
	if err := d.tls.CheckServer(); err != nil {
		return err
	}
	log, done, err := d.log.open(os.Stderr)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, done()) }()
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
		return fmt.Errorf("listen on %s: somebody does already: stop that one if it is a daemon for these disks, or give another address with --listen", d.listen)
	}
	if err != nil {
		return fmt.Errorf("listen on %s: %w", d.listen, err)
	}
	log.Info("listening", "address", listener.Addr().String(), "version", version())
	client := fetch.Client{SecretsDir: d.secretsDir, FileRoots: d.fileRoots}
	loop := reconcile.NewLoop(reconcile.New(client, log, false), reconcile.LoopOptions{
		Dir: d.configDir, Interval: d.interval, Node: d.node, Disks: d.disks, Peers: peer.NewClient(credentials.ForPeers()), Log: log,
	})
	s := api.NewServer(loop, authorizer, max(minRoundAge, 10*d.interval), log)
	return d.serve(ctx, loop, s, listener, log)
}

// resolveRoots makes the roots what the paths of sources are: absolute.
func (d *daemon) resolveRoots() error {
	for i, root := range d.fileRoots {
		abs, err := filepath.Abs(root)
		if err != nil {
			return fmt.Errorf("resolve --allow-file-root: %w", err)
		}
		d.fileRoots[i] = abs
	}
	return nil
}

// serve runs loop and server until ctx is done or one of them fails.
func (d *daemon) serve(ctx context.Context, loop *reconcile.Loop, s *http.Server, l net.Listener, log *slog.Logger) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all, ctx := errgroup.WithContext(ctx)
	s.BaseContext = func(net.Listener) context.Context { return ctx } // nobody who waits for news holds up the end
	all.Go(func() error {
		defer cancel()
		return loop.Run(ctx)
	})
	all.Go(func() error {
		serve := s.Serve
		if s.TLSConfig != nil {
			serve = func(l net.Listener) error { return s.ServeTLS(l, "", "") } // the config has the certificate
		}
		if err := serve(l); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve %s: %w", d.listen, err)
		}
		return nil
	})
	all.Go(func() error {
		<-ctx.Done()
		log.Info("stopping; what was transferred is kept")
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if s.Shutdown(end) != nil {
			return s.Close() // somebody asks very slowly
		}
		return nil
	})
	return all.Wait()
}
