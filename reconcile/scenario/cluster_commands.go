package scenario

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile/plan"
	"github.com/seed-26586806/backing-image-manager/reconcile/report"
	"github.com/seed-26586806/backing-image-manager/reconcile/status"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// mutatingCommands are the commands that change the world.
var mutatingCommands = []command{
	{
		synopsis: "config DIR",
		help:     "Gives all nodes the configuration of a folder of the scenario. With ! before it,\none that has mistakes, as running managers take it.",
		minArgs:  1, maxArgs: 1, negated: true,
		do: func(st *session, in input) error { return st.configure(in.args[0], in.neg) },
	},
	{
		synopsis: "state FILE...",
		help:     "Makes the world what saved status -o json tell; the clock is theirs.",
		minArgs:  1, maxArgs: -1,
		do: loadStates,
	},
	{
		synopsis: "drain NODE|NODE/DISK [off]",
		help:     "Declares evictionRequested for it, whatever the files say; with off no more.",
		minArgs:  1, maxArgs: 1, words: []string{"off"},
		do: setDrained,
	},
	{
		synopsis: "node NODE down|up",
		help:     "A node that is down does nothing and answers nobody.",
		minArgs:  1, maxArgs: 1, words: []string{"down", "up"},
		do: setNode,
	},
	{
		synopsis: "disk NODE/DISK [gone|back] [free=SIZE]",
		help:     "A disk that is gone keeps what is on it, as one that is not mounted.",
		minArgs:  1, maxArgs: 1, words: []string{"gone", "back"}, options: []string{"free"},
		do: setDisk,
	},
	{
		synopsis: "copy IMAGE NODE/DISK [ready|failed|unknown|none] [size=SIZE] [used=DURATION] [unwanted=DURATION]",
		help:     "Puts a copy there, last used and not wanted any more since so long ago; none takes\nit away. IMAGE is a name, or NAME-UUID for another generation or an image that is\nnot declared. An unknown one is Longhorn's: to be adopted.",
		minArgs:  2, maxArgs: 2, words: []string{"ready", "failed", "unknown", "none"}, options: []string{"size", "used", "unwanted"},
		do: setCopy,
	},
	{
		synopsis: "use IMAGE NODE/DISK",
		help:     "A replica uses the copy there.",
		minArgs:  2, maxArgs: 2,
		do: func(st *session, in input) error { return setUsed(st, in, true) },
	},
	{
		synopsis: "unuse IMAGE NODE/DISK",
		help:     "None does any more.",
		minArgs:  2, maxArgs: 2,
		do: func(st *session, in input) error { return setUsed(st, in, false) },
	},
	{
		synopsis: "serve IMAGE [size=SIZE] [from=NODE,...] [fails|fails=" + strings.Join(failureNames(), "|") + "]",
		help:     "What the image's source delivers from now on: so many bytes, to these nodes only (of a\nvolume: those with a replica), or nothing. fails alone is fails=network.",
		minArgs:  1, maxArgs: 1, words: []string{"fails"}, options: []string{"size", "from", "fails"},
		do: setSource,
	},
	{
		synopsis: "advance DURATION",
		help:     "Lets time pass in which the managers do nothing but look.",
		minArgs:  1, maxArgs: 1,
		do: func(st *session, in input) error {
			d, err := schema.ParseInterval(in.args[0])
			if err == nil {
				st.world.advance(d)
			}
			return err
		},
	},
	{
		synopsis: "clock DATE|TIME",
		help:     "Sets the clock, forwards: 2027-01-31 or 2027-01-31T18:00:00Z. It begins at " + start.Format(time.DateOnly) + ".",
		minArgs:  1, maxArgs: 1,
		do: setClock,
	},
	{
		synopsis: "converge [for=DURATION]",
		help:     "Lets all managers work until only waits are left, and prints what they did. With for\nthe clock goes on from deadline to deadline, until so much time has passed.",
		options:  []string{"for"},
		do:       converge,
	},
	{
		synopsis: "forget",
		help:     "Forgets what was done so far, for never.",
		do: func(st *session, _ input) error {
			st.forgotten = len(st.world.executed())
			return nil
		},
	},
}

func loadStates(st *session, in input) error {
	saved := &status.SavedCluster{}
	for _, name := range in.args {
		file, err := st.path(name)
		if err != nil {
			return err
		}
		if err := saved.AddFile(file); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	st.world.restore(saved)
	return nil
}

func setDrained(st *session, in input) error {
	what := in.args[0]
	_, err := st.world.parseDisk(what)
	if !strings.Contains(what, "/") {
		err = st.world.checkNode(what)
	}
	switch {
	case err != nil:
		return err
	case in.has("off") && !st.drained[what]:
		return fmt.Errorf("%s was not drained by this scenario", what)
	case in.has("off"):
		delete(st.drained, what)
	default:
		st.drained[what] = true
	}
	return st.world.configure(st.withDrained())
}

func setNode(st *session, in input) error {
	if err := st.world.checkNode(in.args[0]); err != nil {
		return err
	}
	if len(in.words) != 1 {
		return fmt.Errorf("say either down or up")
	}
	st.world.setUp(in.args[0], in.has("up"))
	return nil
}

func setDisk(st *session, in input) error {
	ref, err := st.world.parseDisk(in.args[0])
	if err != nil {
		return err
	}
	word, err := in.one("", "gone", "back")
	if err != nil {
		return err
	}
	free, given := in.option("free")
	if word == "" && !given {
		return fmt.Errorf("say what about the disk: gone, back or free=SIZE")
	}
	if given {
		bytes, err := schema.ParseQuantity(free)
		if err != nil {
			return err
		}
		st.world.setFree(ref, bytes)
	}
	if word != "" {
		st.world.setAttached(ref, word == "back")
	}
	return nil
}

func setCopy(st *session, in input) error {
	key, err := st.parseCopy(in.args)
	if err != nil {
		return err
	}
	state, err := in.one("ready", "failed", "unknown", "none")
	if err != nil {
		return err
	}
	size := st.world.sourceSize(key.ID)
	if text, given := in.option("size"); given {
		if size, err = schema.ParseQuantity(text); err != nil {
			return err
		}
	}
	c := st.world.newCopy(key.ID, disk.State(state), size)
	if state == "none" {
		c.State = ""
	}
	for name, at := range map[string]*time.Time{"used": &c.LastUsed, "unwanted": &c.SurplusSince} {
		if text, given := in.option(name); given {
			ago, err := schema.ParseInterval(text)
			if err != nil {
				return err
			}
			*at, c.ClockNode = st.world.Now().Add(-ago), key.Disk.Node
		}
	}
	st.world.putCopy(key, c)
	return nil
}

func setUsed(st *session, in input, used bool) error {
	key, err := st.parseCopy(in.args)
	if err != nil {
		return err
	}
	return st.world.setUsed(key, used)
}

func setSource(st *session, in input) error {
	id, err := st.world.findImage(in.args[0])
	if err != nil {
		return err
	}
	if st.world.config().Images[id.Name].Source.Upload != nil {
		return fmt.Errorf("%s has no source: it is uploaded; say where to with: copy %s NODE/DISK", id.Name, id.Name)
	}
	s := source{Size: 1 << 30}
	if text, given := in.option("size"); given {
		if s.Size, err = schema.ParseQuantity(text); err != nil {
			return err
		}
	}
	if text, given := in.option("from"); given {
		s.From = strings.Split(text, ",")
		for _, node := range s.From {
			if err := st.world.checkNode(node); err != nil {
				return err
			}
		}
	}
	how, fails := in.option("fails")
	if in.has("fails") {
		how, fails = "network", true
	}
	if fails {
		if s.Err, err = st.world.newFailure(id.Name, how); err != nil {
			return err
		}
	}
	st.world.setSource(id.Name, s)
	return nil
}

func setClock(st *session, in input) error {
	at, err := time.Parse(time.DateOnly, in.args[0])
	if err != nil {
		at, err = time.Parse(time.RFC3339, in.args[0])
	}
	if err != nil {
		return fmt.Errorf("%q is neither a date such as 2027-01-31 nor a time such as 2027-01-31T18:00:00Z", in.args[0])
	}
	if at.Before(st.world.Now()) {
		return fmt.Errorf("the clock goes forwards only: it is %s", st.world.Now().Format(time.RFC3339))
	}
	st.world.advance(at.Sub(st.world.Now()))
	return nil
}

// assertCommands are the commands that tell, or ask, how it is.
var assertCommands = []command{
	{
		synopsis: "plan [NODE] [-o text|json|yaml|markdown]",
		help:     "Prints what all nodes, or the one, would do now, for stdout and cmp stdout FILE.",
		maxArgs:  2, words: []string{"-o"},
		do: printPlan,
	},
	{
		synopsis: "placed IMAGE NODE/DISK...",
		help:     "Exactly these disks have a ready copy. What is down or gone has none.",
		minArgs:  2, maxArgs: -1,
		check: checkPlaced,
	},
	{
		synopsis: "copies IMAGE N|=N [on=TAG]...",
		help:     "At least (=: exactly) so many ready copies are on disks that have, themselves or by\ntheir node, each of these tags; the name of a node is one too.",
		minArgs:  2, maxArgs: 2, options: []string{"on"},
		check: checkCopies,
	},
	{
		synopsis: "blocked IMAGE [REGEXP]",
		help:     "Something about the image waits for a person, for a reason that matches.",
		minArgs:  1, maxArgs: 2,
		check: func(st *session, in input) (checkResult, error) { return checkPlanned(st, in, plan.Blocked) },
	},
	{
		synopsis: "waits IMAGE [REGEXP]",
		help:     "Something about it waits, and goes on by itself.",
		minArgs:  1, maxArgs: 2,
		check: func(st *session, in input) (checkResult, error) { return checkPlanned(st, in, plan.Wait) },
	},
	{
		synopsis: "never ACTION [IMAGE]",
		help:     "Nothing like it was done, or tried, since the scenario began or the last forget. The\nactions are those of a plan: download, sync, evict, cleanup, …",
		minArgs:  1, maxArgs: 2,
		check: checkNever,
	},
}

func printPlan(st *session, in input) error {
	format, args := "text", in.args
	if in.has("-o") {
		if len(args) == 0 {
			return fmt.Errorf("-o takes one of text, json, yaml, markdown")
		}
		format, args = args[len(args)-1], args[:len(args)-1]
	}
	if !slices.Contains([]string{"text", "json", "yaml", "markdown"}, format) {
		return fmt.Errorf("-o must be one of text, json, yaml, markdown")
	}
	if len(args) > 1 {
		return fmt.Errorf("plan takes one node, or none")
	}
	if len(args) == 0 {
		return report.WritePlan(st.out, st.world.plan(), report.Style{Format: report.Format(format), Cluster: true})
	}
	if err := st.world.checkNode(args[0]); err != nil {
		return err
	}
	p, err := st.world.planOf(args[0])
	if err != nil {
		return err
	}
	return report.WritePlan(st.out, p, report.Style{Format: report.Format(format)})
}

func checkPlaced(st *session, in input) (checkResult, error) {
	id, err := st.world.findImage(in.args[0])
	if err != nil {
		return checkResult{}, err
	}
	var want []string
	for _, text := range in.args[1:] {
		ref, err := st.world.parseDisk(text)
		if err != nil {
			return checkResult{}, err
		}
		want = append(want, ref.String())
	}
	slices.Sort(want)
	want = slices.Compact(want)
	is := names(st.world.readyDisks(id))
	if slices.Equal(is, want) {
		return checkResult{ok: true, got: fmt.Sprintf("%s is ready on exactly %s", in.args[0], strings.Join(is, ", "))}, nil
	}
	return checkResult{got: fmt.Sprintf("%s is ready on %s; expected: %s", in.args[0], orNone(is), strings.Join(want, ", ")), image: id}, nil
}

func names(refs []schema.DiskRef) []string {
	out := []string{}
	for _, ref := range refs {
		out = append(out, ref.String())
	}
	return out
}

func orNone(names []string) string {
	if len(names) == 0 {
		return "no disk"
	}
	return strings.Join(names, ", ")
}

func checkCopies(st *session, in input) (checkResult, error) {
	id, err := st.world.findImage(in.args[0])
	if err != nil {
		return checkResult{}, err
	}
	number, exactly := strings.CutPrefix(in.args[1], "=")
	want, err := strconv.Atoi(number)
	if err != nil || want < 0 {
		return checkResult{}, fmt.Errorf("%q is no number of copies: N, or =N", in.args[1])
	}
	tags := in.options["on"]
	if err := checkTags(st.world.config(), tags); err != nil {
		return checkResult{}, err
	}
	on := slices.DeleteFunc(st.world.readyDisks(id), func(ref schema.DiskRef) bool {
		return slices.ContainsFunc(tags, func(tag string) bool { return !st.world.hasTag(ref, tag) })
	})
	where := ""
	if len(tags) > 0 {
		where = " on " + strings.Join(tags, " and ")
	}
	least := "at least "
	if exactly {
		least = ""
	}
	v := checkResult{ok: len(on) == want || !exactly && len(on) > want, image: id}
	v.got = fmt.Sprintf("%s has %d ready%s (%s); expected: %s%d", in.args[0], len(on), where, orNone(names(on)), least, want)
	if v.ok {
		v.image = disk.ID{}
		v.got = fmt.Sprintf("%s has %d ready%s (%s)", in.args[0], len(on), where, orNone(names(on)))
	}
	return v, nil
}

// checkTags refuses words that no disk could match, which are mistyped.
func checkTags(c schema.Config, tags []string) error {
	known := map[string]bool{}
	for name, node := range c.Nodes {
		known[name] = true
		for _, tag := range node.Tags {
			known[tag] = true
		}
		for diskName, d := range node.Disks {
			known[schema.DiskRef{Node: name, Disk: diskName}.String()] = true
			for _, tag := range d.Tags {
				known[tag] = true
			}
		}
	}
	for _, tag := range tags {
		if !known[tag] {
			return fmt.Errorf("on=%s: no node and no disk is called so or has that tag", tag)
		}
	}
	return nil
}

// checkPlanned asks for an action that does nothing, by its reason.
func checkPlanned(st *session, in input, kind plan.Op) (checkResult, error) {
	reason := regexp.MustCompile("")
	if len(in.args) > 1 {
		var err error
		if reason, err = regexp.Compile(in.args[1]); err != nil {
			return checkResult{}, err
		}
	}
	if _, err := st.world.findImage(in.args[0]); err != nil {
		return checkResult{}, err
	}
	var match, other []string
	for _, a := range st.world.plan().Actions {
		if !isAbout(a, in.args[0]) {
			continue
		}
		line := fmt.Sprintf("%s %s: %s", a.Op, a.CopyRef().Disk, a.Reason)
		if a.Disk == "" {
			line = fmt.Sprintf("%s: %s", a.Op, a.Reason)
		}
		if a.Op == kind && reason.MatchString(a.Reason) {
			match = append(match, line)
		} else {
			other = append(other, line)
		}
	}
	if len(match) > 0 {
		return checkResult{ok: true, got: strings.Join(match, "\n    ")}, nil
	}
	text := fmt.Sprintf("nothing about %s is planned", in.args[0])
	if len(other) > 0 {
		text = fmt.Sprintf("about %s only this is planned:\n    %s", in.args[0], strings.Join(other, "\n    "))
	}
	return checkResult{got: text}, nil
}

// isAbout reports whether an action is about an image by its name, or about the
// generation in a folder.
func isAbout(a plan.Action, image string) bool {
	return a.Image == image || a.CopyRef().ID.String() == image
}

func checkNever(st *session, in input) (checkResult, error) {
	kind := plan.Op(in.args[0])
	if !slices.Contains(plan.Ops, kind) {
		return checkResult{}, fmt.Errorf("there is no action %q: there are %s", in.args[0], actionNames())
	}
	if len(in.args) > 1 && !slices.ContainsFunc(st.world.executed(), func(d executed) bool { return isAbout(d.Action, in.args[1]) }) {
		if _, err := st.world.findImage(in.args[1]); err != nil {
			return checkResult{}, err
		}
	}
	var did []string
	for _, d := range st.history() {
		about := len(in.args) < 2 || isAbout(d.Action, in.args[1])
		if d.Op == kind && about {
			did = append(did, fmt.Sprintf("+%v %s %s %s: %s", st.world.sinceStart(d.At), d.Op, d.Image, d.CopyRef().Disk, d.Reason))
		}
	}
	if len(did) == 0 {
		return checkResult{ok: true, got: strings.Join(in.args, " ") + " was not done"}, nil
	}
	return checkResult{got: strings.Join(in.args, " ") + " was done:\n    " + strings.Join(did, "\n    ")}, nil
}

func actionNames() string {
	var names []string
	for _, k := range plan.Ops {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}
