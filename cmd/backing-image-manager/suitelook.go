package main

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/seed-26586806/backing-image-manager/disk"
	"github.com/seed-26586806/backing-image-manager/reconcile"
	"github.com/seed-26586806/backing-image-manager/reconcile/rehearse"
	"github.com/seed-26586806/backing-image-manager/schema"
)

// looking are the commands that tell, or ask, how it is.
var looking = []command{
	{
		synopsis: "plan [NODE] [-o text|json|yaml|markdown]",
		help:     "Prints what all nodes, or the one, would do now, for stdout and cmp stdout FILE.",
		most:     2, words: []string{"-o"},
		act: printPlan,
	},
	{
		synopsis: "placed IMAGE NODE/DISK...",
		help:     "Exactly these disks have a ready copy. What is down or gone has none.",
		least:    2, most: -1,
		look: isPlaced,
	},
	{
		synopsis: "copies IMAGE N|=N [on=TAG]...",
		help:     "At least (=: exactly) so many ready copies are on disks that have, themselves or by\ntheir node, each of these tags; the name of a node is one too.",
		least:    2, most: 2, options: []string{"on"},
		look: hasCopies,
	},
	{
		synopsis: "blocked IMAGE [REGEXP]",
		help:     "Something about the image waits for a person, for a reason that matches.",
		least:    1, most: 2,
		look: func(st *stage, in input) (finding, error) { return isPlanned(st, in, reconcile.Blocked) },
	},
	{
		synopsis: "waits IMAGE [REGEXP]",
		help:     "Something about it waits, and goes on by itself.",
		least:    1, most: 2,
		look: func(st *stage, in input) (finding, error) { return isPlanned(st, in, reconcile.Wait) },
	},
	{
		synopsis: "never ACTION [IMAGE]",
		help:     "Nothing like it was done, or tried, since the scenario began or the last forget. The\nactions are those of a plan: download, sync, evict, cleanup, …",
		least:    1, most: 2,
		look: neverDone,
	},
}

func printPlan(st *stage, in input) error {
	format, args := "text", in.args
	if in.has("-o") {
		if len(args) == 0 {
			return fmt.Errorf("-o takes one of text, json, yaml, markdown")
		}
		format, args = args[len(args)-1], args[:len(args)-1]
	}
	if !slices.Contains([]string{"text", "json", "yaml", "markdown"}, format) {
		return fmt.Errorf("-o has to be one of text, json, yaml, markdown")
	}
	if len(args) > 1 {
		return fmt.Errorf("plan takes one node, or none")
	}
	if len(args) == 0 {
		return writePlan(st.out, st.world.Plan(), format, false, true)
	}
	if err := st.world.Node(args[0]); err != nil {
		return err
	}
	p, err := st.world.PlanOf(args[0])
	if err != nil {
		return err
	}
	return writePlan(st.out, p, format, false, false)
}

func isPlaced(st *stage, in input) (finding, error) {
	id, err := st.world.Image(in.args[0])
	if err != nil {
		return finding{}, err
	}
	var want []string
	for _, text := range in.args[1:] {
		ref, err := st.world.Disk(text)
		if err != nil {
			return finding{}, err
		}
		want = append(want, ref.String())
	}
	slices.Sort(want)
	want = slices.Compact(want)
	is := names(st.world.Ready(id))
	if slices.Equal(is, want) {
		return finding{so: true, is: fmt.Sprintf("%s is ready on exactly %s", in.args[0], strings.Join(is, ", "))}, nil
	}
	return finding{is: fmt.Sprintf("%s is ready on %s; expected: %s", in.args[0], orNone(is), strings.Join(want, ", ")), about: id}, nil
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

func hasCopies(st *stage, in input) (finding, error) {
	id, err := st.world.Image(in.args[0])
	if err != nil {
		return finding{}, err
	}
	number, exactly := strings.CutPrefix(in.args[1], "=")
	want, err := strconv.Atoi(number)
	if err != nil || want < 0 {
		return finding{}, fmt.Errorf("%q is no number of copies: N, or =N", in.args[1])
	}
	tags := in.options["on"]
	if err := knownTags(st.world.Config(), tags); err != nil {
		return finding{}, err
	}
	on := slices.DeleteFunc(st.world.Ready(id), func(ref schema.DiskRef) bool {
		return slices.ContainsFunc(tags, func(tag string) bool { return !st.world.Matches(ref, tag) })
	})
	where := ""
	if len(tags) > 0 {
		where = " on " + strings.Join(tags, " and ")
	}
	least := "at least "
	if exactly {
		least = ""
	}
	v := finding{so: len(on) == want || !exactly && len(on) > want, about: id}
	v.is = fmt.Sprintf("%s has %d ready%s (%s); expected: %s%d", in.args[0], len(on), where, orNone(names(on)), least, want)
	if v.so {
		v.about = disk.ID{}
		v.is = fmt.Sprintf("%s has %d ready%s (%s)", in.args[0], len(on), where, orNone(names(on)))
	}
	return v, nil
}

// knownTags refuses words that no disk could match, which are mistyped.
func knownTags(c schema.Config, tags []string) error {
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

// isPlanned asks for an action that does nothing, by its reason.
func isPlanned(st *stage, in input, kind reconcile.Kind) (finding, error) {
	reason := regexp.MustCompile("")
	if len(in.args) > 1 {
		var err error
		if reason, err = regexp.Compile(in.args[1]); err != nil {
			return finding{}, err
		}
	}
	if _, err := st.world.Image(in.args[0]); err != nil {
		return finding{}, err
	}
	var match, other []string
	for _, a := range st.world.Plan().Actions {
		if !isAbout(a, in.args[0]) {
			continue
		}
		line := fmt.Sprintf("%s %s: %s", a.Kind, a.Key().Disk, a.Reason)
		if a.Disk == "" {
			line = fmt.Sprintf("%s: %s", a.Kind, a.Reason)
		}
		if a.Kind == kind && reason.MatchString(a.Reason) {
			match = append(match, line)
		} else {
			other = append(other, line)
		}
	}
	if len(match) > 0 {
		return finding{so: true, is: strings.Join(match, "\n    ")}, nil
	}
	text := fmt.Sprintf("nothing about %s is planned", in.args[0])
	if len(other) > 0 {
		text = fmt.Sprintf("about %s only this is planned:\n    %s", in.args[0], strings.Join(other, "\n    "))
	}
	return finding{is: text}, nil
}

// isAbout reports whether an action is about an image by its name, or about the
// generation in a folder.
func isAbout(a reconcile.Action, image string) bool {
	return a.Image == image || a.Key().ID.String() == image
}

func neverDone(st *stage, in input) (finding, error) {
	kind := reconcile.Kind(in.args[0])
	if !slices.Contains(reconcile.Kinds, kind) {
		return finding{}, fmt.Errorf("there is no action %q: there are %s", in.args[0], kindNames())
	}
	if len(in.args) > 1 && !slices.ContainsFunc(st.world.Done(), func(d rehearse.Done) bool { return isAbout(d.Action, in.args[1]) }) {
		if _, err := st.world.Image(in.args[1]); err != nil {
			return finding{}, err
		}
	}
	var did []string
	for _, d := range st.remembered() {
		about := len(in.args) < 2 || isAbout(d.Action, in.args[1])
		if d.Kind == kind && about {
			did = append(did, fmt.Sprintf("+%v %s %s %s: %s", st.world.Since(d.At), d.Kind, d.Image, d.Key().Disk, d.Reason))
		}
	}
	if len(did) == 0 {
		return finding{so: true, is: strings.Join(in.args, " ") + " was not done"}, nil
	}
	return finding{is: strings.Join(in.args, " ") + " was done:\n    " + strings.Join(did, "\n    ")}, nil
}

func kindNames() string {
	var names []string
	for _, k := range reconcile.Kinds {
		names = append(names, string(k))
	}
	return strings.Join(names, ", ")
}
