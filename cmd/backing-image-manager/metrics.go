package main

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile"
)

// newRegistry returns the metrics of one daemon. Each time that they are collected
// they are made of what the loop saw last.
func newRegistry(loop *reconcile.Loop) *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(metrics{loop}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

type metrics struct{ loop *reconcile.Loop }

func describeMetric(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("backing_image_manager_"+name, help, labels, nil)
}

var (
	configValid    = describeMetric("config_valid", "Whether the configuration is wholly valid (1) or not (0).")
	configErrors   = describeMetric("config_errors", "Mistakes in the configuration, with one for a directory that cannot be used.")
	configInfo     = describeMetric("config_info", "1, with the digest of the configuration (\"\" while anything is broken) and the git commit that it is of (\"\" if none is known).", "digest", "revision")
	imagesDeclared = describeMetric("images_declared", "Images that are declared.")
	imagesReady    = describeMetric("images_ready", "Declared images that have all the copies that are wanted of them ready.")
	imagesHeld     = describeMetric("suspended_images", "Declared images that are suspended, each by itself or with everything.")
	suspendsOver   = describeMetric("suspensions_over", "Suspensions that are declared although their time is over.")
	copiesWanted   = describeMetric("wanted_copies", "Copies that are wanted of the declared images, on all nodes.")
	copiesReady    = describeMetric("ready_copies", "Those of the wanted copies that are ready, on all nodes that answer.")
	copiesMissing  = describeMetric("missing_copies", "Wanted copies that are not ready, by image; of images that lack none there is no value, and of many that do only the first 100 by name have one.", "image")
	peerAnswers    = describeMetric("peer_answers", "Whether the other node answers (1) or not (0).", "peer")
	peerAge        = describeMetric("peer_last_look_age_seconds", "How long ago the other node last gave a sign of life, and where it is silent, the last question was asked that it answered. A node without news is asked every 30 s.", "peer")
	configSkew     = describeMetric("config_skew_peers", "Other nodes whose configuration is another one, or is not wholly valid.")
	copiesByState  = describeMetric("copies", "Copies on the disks of this node, and those that are still to be made, by state.", "state")
	planned        = describeMetric("planned_actions", "Actions of the plan, by kind. Those that wait or are blocked do nothing yet.", "action")
	running        = describeMetric("running_actions", "Actions that are under way, by kind.", "action")
	actionsDone    = describeMetric("actions_total", "Actions that succeeded, by kind.", "action")
	failures       = describeMetric("failures_total", "Actions that failed, by the class of the trouble.", "class")
	fetched        = describeMetric("fetched_bytes_total", "Bytes of images that crossed the network to here, from origins or from peers.", "from")
	diskUsable     = describeMetric("disk_usable", "Whether the disk can be used (1) or not (0).", "disk")
	diskTotal      = describeMetric("disk_size_bytes", "Size of the file system of the disk.", "disk")
	diskFree       = describeMetric("disk_free_bytes", "Free bytes on the disk, reserved ones included.", "disk")
	diskReserved   = describeMetric("disk_reserved_bytes", "Bytes that have to stay free on the disk.", "disk")
	rounds         = describeMetric("rounds_total", "Rounds of the loop: looks at the disks with a plan each.")
	lastRound      = describeMetric("last_round_timestamp_seconds", "When the disks were looked at last, in seconds since 1970.")
)

// Describe sends all descriptions.
func (metrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		configValid, configErrors, configInfo, configSkew, imagesDeclared, imagesReady, imagesHeld, suspendsOver, copiesByState, copiesWanted, copiesReady, copiesMissing, peerAnswers, peerAge, planned, running, actionsDone, failures,
		fetched, diskUsable, diskTotal, diskFree, diskReserved, rounds, lastRound,
	} {
		out <- d
	}
}

// Collect sends the values. Before the first round there are none but counts.
func (m metrics) Collect(out chan<- prometheus.Metric) {
	send := sender(out)
	counts := m.loop.Counts()
	send.count(fetched, counts.Fetched, "origins")
	send.count(fetched, counts.FromPeers, "peers")
	for kind, n := range counts.Done {
		send.count(actionsDone, n, string(kind))
	}
	for class, n := range counts.Failed {
		send.count(failures, n, class)
	}
	v := m.loop.View()
	if v == nil {
		return
	}
	send.count(rounds, int64(v.Rounds))
	send.gauge(lastRound, float64(v.Observed.Now.UnixNano())/1e9)
	status, _ := m.loop.Status()
	send.config(status.Config)
	send.disks(status.Node, status.Disks)
	send.images(status.Node, status.Images)
	send.wanted(status.Images)
	send.suspended(status)
	send.peers(time.Now(), status.Peers)
	for kind, n := range status.Plan.Summary.Counts {
		send.gauge(planned, float64(n), string(kind))
	}
	under := map[reconcile.Kind]int{}
	for _, t := range m.loop.Transfers() {
		under[t.Action.Kind]++
	}
	for _, kind := range reconcile.Kinds {
		send.gauge(running, float64(under[kind]), string(kind))
	}
}

type sender chan<- prometheus.Metric

func (s sender) gauge(d *prometheus.Desc, v float64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (s sender) count(d *prometheus.Desc, n int64, labels ...string) {
	s <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
}

func (s sender) config(c reconcile.ConfigStatus) {
	errors := len(c.Errors)
	if c.Fault != "" {
		errors++
	}
	s.gauge(configErrors, float64(errors))
	s.gauge(configValid, oneIf(errors == 0 && c.Digest != ""))
	s.gauge(configInfo, 1, c.Digest, c.Revision)
}

func (s sender) disks(node string, disks []reconcile.DiskStatus) {
	for _, d := range disks {
		if d.Node != node {
			continue // it tells of its own by itself
		}
		s.gauge(diskUsable, oneIf(d.Problem == ""), d.Disk)
		s.gauge(diskReserved, float64(d.Reserved), d.Disk)
		if d.Problem == "" {
			s.gauge(diskTotal, float64(d.Total), d.Disk)
			s.gauge(diskFree, float64(d.Free), d.Disk)
		}
	}
}

func (s sender) images(node string, images []reconcile.ImageStatus) {
	declared, ready := 0, 0
	states := map[disk.State]int{}
	for _, image := range images {
		if image.Declared {
			declared++
			ready += int(oneIf(image.Wanted > 0 && image.Ready >= image.Wanted))
		}
		for _, c := range image.Copies {
			if c.Node == node {
				states[c.State]++
			}
		}
	}
	s.gauge(imagesDeclared, float64(declared))
	s.gauge(imagesReady, float64(ready))
	for _, state := range []disk.State{disk.Pending, disk.Starting, disk.InProgress, disk.Ready, disk.Failed, disk.Unknown} {
		s.gauge(copiesByState, float64(states[state]), string(state))
	}
}

// mostMissing is how many images have a value of their own.
const mostMissing = 100

// wanted sums up over all declared images, so that the number of values does not grow
// with them.
func (s sender) wanted(images []reconcile.ImageStatus) {
	wanted, ready, told := 0, 0, 0
	for _, image := range images {
		if !image.Declared {
			continue
		}
		have := min(image.Ready, image.Wanted) // surplus ones make up for nothing
		wanted, ready = wanted+image.Wanted, ready+have
		if missing := image.Wanted - have; missing > 0 && told < mostMissing {
			told++
			s.gauge(copiesMissing, float64(missing), image.Name)
		}
	}
	s.gauge(copiesWanted, float64(wanted))
	s.gauge(copiesReady, float64(ready))
}

func (s sender) suspended(status reconcile.Status) {
	held, over := 0, 0
	if by := status.Config.Suspended; by != nil && by.Over {
		over++
	}
	for _, image := range status.Images {
		switch by := image.Suspended; {
		case by == nil:
		case by.Over:
			over++
		default:
			held++
		}
	}
	s.gauge(imagesHeld, float64(held))
	s.gauge(suspendsOver, float64(over))
}

func (s sender) peers(now time.Time, peers []reconcile.PeerStatus) {
	skewed := 0
	for _, p := range peers {
		s.gauge(peerAnswers, oneIf(p.Answers), p.Node)
		if !p.LastAnswer.IsZero() {
			s.gauge(peerAge, max(0, now.Sub(p.LastAnswer).Seconds()), p.Node)
		}
		if p.Skew == reconcile.SkewOther || p.Skew == reconcile.SkewInvalid {
			skewed++
		}
	}
	s.gauge(configSkew, float64(skewed))
}

func oneIf(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}
