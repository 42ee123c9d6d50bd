package api

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/seed-26586806/backing-image-manager/disk/model"
	"github.com/seed-26586806/backing-image-manager/fetch/auth"
	"github.com/seed-26586806/backing-image-manager/fetch/text"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/delivery"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
)

// newRegistry returns the metrics of one daemon. Each collection computes them from the
// last round of the loop, and from the current certificate.
func newRegistry(loop *reconcile.Loop, a *auth.Authorizer) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collector{loop, a}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

// metric is one metric of the daemon.
type metric struct {
	name, help string
	kind       prometheus.ValueType
	labels     []string
	desc       *prometheus.Desc
}

func gauge(name, help string, labels ...string) metric {
	return newMetric(prometheus.GaugeValue, name, help, labels)
}

func counter(name, help string, labels ...string) metric {
	return newMetric(prometheus.CounterValue, name, help, labels)
}

func newMetric(kind prometheus.ValueType, name, help string, labels []string) metric {
	name = "backing_image_manager_" + name
	m := metric{name, help, kind, labels, prometheus.NewDesc(name, help, labels, nil)}
	metrics = append(metrics, m)
	return m
}

// metrics are all metrics of the daemon, except those of Go and of the process.
var metrics []metric

var (
	configValid   = gauge("config_valid", "1 if the configuration is valid, 0 otherwise.")
	configErrors  = gauge("config_errors", "Number of errors in the configuration. An unusable config directory counts as one.")
	configInfo    = gauge("config_info", "Always 1, with the config digest (empty if there are errors) and the git commit (empty if unknown).", "digest", "revision")
	configSkew    = gauge("config_skew_peers", "Number of peers whose configuration differs or has errors.")
	declared      = gauge("images_declared", "Number of declared images.")
	ready         = gauge("images_ready", "Number of declared images with as many ready copies as desired.")
	suspended     = gauge("suspended_images", "Number of declared images that are suspended, by their own declaration or by the settings.")
	suspendsOver  = gauge("suspensions_over", "Number of declared suspensions that are over.")
	copies        = gauge("copies", "Number of copies on the disks of this node, including those to be created, by state.", "state")
	signedCopies  = gauge("signed_copies", "Number of ready copies on the disks of this node with a verified signature, by its scheme and its key (\"signer\").", "scheme", "signer")
	desiredCopies = gauge("desired_copies", "Number of desired copies of the declared images on all nodes.")
	readyCopies   = gauge("ready_copies", "Number of desired copies that are ready, on all reachable nodes.")
	missingCopies = gauge("missing_copies", "Number of desired copies of an image that are not ready, for at most 100 images with missing copies.", "image")
	leftCopies    = gauge("remaining_copies", "Number of ready copies of an image on all reachable nodes, for each image in missing_copies.", "image")
	peerReachable = gauge("peer_reachable", "1 if the peer responds, 0 otherwise.", "peer")
	peerAge       = gauge("peer_last_response_age_seconds", "Seconds since the last response of the peer; of an unreachable peer, since the last query that it answered.", "peer")
	planned       = gauge("planned_actions", "Number of actions in the current plan, including those that wait or are blocked, by op.", "op")
	idle          = gauge("waiting_actions", "Number of actions in the current plan that do nothing, by op (\"wait\" or \"blocked\") and code of the reason.", "op", "code")
	running       = gauge("running_actions", "Number of running actions, by op.", "op")
	succeeded     = counter("actions_total", "Number of actions that succeeded, by op.", "op")
	failed        = counter("failures_total", "Number of actions that failed, by class of the error.", "class")
	fetched       = counter("fetched_bytes_total", "Image bytes that this node received over the network: from sources (\"upstreams\") or from peers (\"peers\").", "from")
	proofs        = counter("proofs_total", "Number of chunks requested as a proof before deletions, by result: \"passed\", \"wrong\" or \"missing\".", "result")
	unproven      = gauge("unproven_copies", "Number of copies on other nodes that do not count for this node, because their nodes sent other bytes than they claim, or none.")
	diskUsable    = gauge("disk_usable", "1 if the disk is usable and not read-only, 0 otherwise.", "disk")
	diskSize      = gauge("disk_size_bytes", "Size of the file system of the disk.", "disk")
	diskFree      = gauge("disk_free_bytes", "Free bytes on the disk, including reserved ones.", "disk")
	diskReserved  = gauge("disk_reserved_bytes", "Bytes that must stay free on the disk.", "disk")
	diskDamage    = gauge("disk_last_damage_timestamp_seconds", "Time at which a copy on the disk was last found damaged, in seconds since 1970.", "disk")
	certificate   = gauge("certificate_expiration_timestamp_seconds", "Time at which the certificate of this daemon expires, or its authority if that is earlier, in seconds since 1970.")
	rounds        = counter("rounds_total", "Number of reconcile rounds.")
	deliveries    = counter("deliveries_total", "Number of messages sent to the server of a setting (\"report\" or \"notify\"), by result: \"accepted\" or \"failed\".", "setting", "result")
	failing       = gauge("delivery_failing", "1 if the server of a setting (\"report\" or \"notify\") did not accept the last message, 0 otherwise.", "setting")
	lastRound     = gauge("last_round_timestamp_seconds", "Start of the last reconcile round, in seconds since 1970.")
)

// collector implements prometheus.Collector.
type collector struct {
	loop *reconcile.Loop
	auth *auth.Authorizer
}

// Describe sends all descriptions.
func (collector) Describe(out chan<- *prometheus.Desc) {
	for _, m := range metrics {
		out <- m.desc
	}
}

// Collect sends the current values. Before the first round these are only the counters and the certificate.
func (c collector) Collect(out chan<- prometheus.Metric) {
	send := sender(out)
	counts := c.loop.Counts()
	send.value(fetched, float64(counts.Fetched), "upstreams")
	send.value(fetched, float64(counts.FromPeers), "peers")
	for kind, n := range counts.Done {
		send.value(succeeded, float64(n), string(kind))
	}
	for class, n := range counts.Failed {
		send.value(failed, float64(n), class)
	}
	for result, name := range proofNames {
		send.value(proofs, float64(counts.Proofs[result]), name)
	}
	for setting, n := range map[string]delivery.Counts{"report": counts.Reports, "notify": counts.Notifications} {
		send.value(deliveries, float64(n.Accepted), setting, "accepted")
		send.value(deliveries, float64(n.Failed), setting, "failed")
	}
	if at, ok := c.auth.CertificateExpiry(); ok {
		send.value(certificate, float64(at.Unix()))
	}
	v, status := c.loop.Status()
	if v == nil {
		return
	}
	send.value(rounds, float64(v.Rounds))
	send.value(lastRound, float64(v.Observed.Now.UnixNano())/1e9)
	send.config(status.Config)
	send.disks(status.Node, status.Disks)
	send.images(status.Node, status.Images)
	send.desired(status.Images)
	send.suspended(status)
	send.peers(time.Now(), status.Peers)
	send.failing("report", status.Report)
	send.failing("notify", status.Notify)
	send.plan(status.Plan)
	active := map[model.Op]int{}
	for _, t := range c.loop.Transfers() {
		active[t.Action.Op]++
	}
	for _, kind := range model.Ops {
		send.value(running, float64(active[kind]), string(kind))
	}
}

// proofNames are the values of the label of proofs_total.
var proofNames = map[plan.ProofResult]string{plan.ProofPassed: "passed", plan.ProofWrong: "wrong", plan.ProofMissing: "missing"}

type sender chan<- prometheus.Metric

// value sends a value with printable labels: a label can be a name from the configuration, and the
// text format does not escape control characters.
func (s sender) value(m metric, v float64, labels ...string) {
	for i, label := range labels {
		labels[i] = text.Line(label)
	}
	s <- prometheus.MustNewConstMetric(m.desc, m.kind, v, labels...)
}

func (s sender) config(c status.ConfigStatus) {
	errors := len(c.Errors)
	if c.Fault != "" {
		errors++
	}
	s.value(configErrors, float64(errors))
	s.value(configValid, oneIf(errors == 0 && c.Digest != ""))
	s.value(configInfo, 1, c.Digest, c.Revision)
}

func (s sender) disks(node string, disks []status.DiskStatus) {
	for _, d := range disks {
		if d.Node != node {
			continue // the daemon of the disk's node exports its metrics
		}
		s.value(diskUsable, oneIf(d.Problem == "" && !d.ReadOnly), d.Name)
		s.value(diskReserved, float64(d.Reserved), d.Name)
		if d.Problem == "" {
			s.value(diskSize, float64(d.Total), d.Name)
			s.value(diskFree, float64(d.Free), d.Name)
		}
	}
}

func (s sender) images(node string, images []status.ImageStatus) {
	nDeclared, nReady, nUnproven := 0, 0, 0
	states, signed := map[model.State]int{}, map[[2]string]int{} // signed: by scheme and signer
	damaged := map[string]time.Time{}                            // by disk
	for _, image := range images {
		if image.Declared {
			nDeclared++
			nReady += int(oneIf(image.AllReady()))
		}
		for _, c := range image.Copies {
			if c.Node == node {
				states[c.State]++
				if c.DamagedAt.After(damaged[c.Disk]) {
					damaged[c.Disk] = c.DamagedAt
				}
				if by := c.Signature; by.Signer != "" && c.State == model.Ready {
					signed[[2]string{by.Scheme, by.Signer}]++
				}
			} else if c.Unproven {
				nUnproven++
			}
		}
	}
	s.value(declared, float64(nDeclared))
	s.value(ready, float64(nReady))
	s.value(unproven, float64(nUnproven))
	for by, n := range signed {
		s.value(signedCopies, float64(n), by[0], by[1])
	}
	for name, at := range damaged {
		s.value(diskDamage, float64(at.Unix()), name)
	}
	for _, state := range []model.State{model.Pending, model.Starting, model.InProgress, model.Ready, model.Failed, model.Unknown} {
		s.value(copies, float64(states[state]), string(state))
	}
}

// maxMissing is the maximum number of images that have time series of their own.
const maxMissing = 100

// desired sums over all declared images, so that the number of time series does not grow
// with the number of images.
func (s sender) desired(images []status.ImageStatus) {
	nDesired, nReady := 0, 0
	var incomplete []status.ImageStatus
	for _, image := range images {
		if !image.Declared {
			continue
		}
		missing := image.Missing()
		nDesired, nReady = nDesired+image.Desired, nReady+max(0, image.Desired-missing) // a surplus copy does not replace a missing copy of another image
		if missing > 0 {
			incomplete = append(incomplete, image)
		}
	}
	s.value(desiredCopies, float64(nDesired))
	s.value(readyCopies, float64(nReady))
	slices.SortFunc(incomplete, func(a, b status.ImageStatus) int { // an image without any copy must not be left out
		return cmp.Or(cmp.Compare(a.Ready, b.Ready), strings.Compare(a.Name, b.Name))
	})
	for _, image := range incomplete[:min(len(incomplete), maxMissing)] {
		s.value(missingCopies, float64(image.Missing()), image.Name)
		s.value(leftCopies, float64(image.Ready), image.Name)
	}
}

func (s sender) suspended(status status.Status) {
	active, over := 0, 0
	if by := status.Config.Suspended; by != nil && by.Over {
		over++
	}
	for _, image := range status.Images {
		switch by := image.Suspended; {
		case by == nil:
		case by.Over:
			over++
		default:
			active++
		}
	}
	s.value(suspended, float64(active))
	s.value(suspendsOver, float64(over))
}

// plan counts the actions of the plan. The codes of package plan limit the number of time series.
func (s sender) plan(p plan.Plan) {
	for op, n := range p.Summary.Counts {
		s.value(planned, float64(n), string(op))
	}
	type reason struct {
		op   model.Op
		code model.Code
	}
	waiting := map[reason]int{}
	for _, a := range p.Actions {
		if a.Idle() {
			waiting[reason{a.Op, a.Code}]++
		}
	}
	for r, n := range waiting {
		s.value(idle, float64(n), string(r.op), string(r.code))
	}
}

func (s sender) peers(now time.Time, peers []status.PeerStatus) {
	skewed := 0
	for _, p := range peers {
		s.value(peerReachable, oneIf(p.Responds), p.Node)
		if !p.LastResponse.IsZero() {
			s.value(peerAge, max(0, now.Sub(p.LastResponse).Seconds()), p.Node)
		}
		if p.Skew == status.SkewOther || p.Skew == status.SkewInvalid {
			skewed++
		}
	}
	s.value(configSkew, float64(skewed))
}

func (s sender) failing(setting string, d *status.Delivery) {
	if d != nil {
		s.value(failing, oneIf(d.Problem != ""), setting)
	}
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
