// Command evaluator runs Prometheus' own rule engine over samples that come in on stdin, in the samples' own time.
//
//	evaluator metrics FILE...                       which metrics the rules read, and from when on, as JSON
//	evaluator evaluate -start MS -end MS FILE...    alerts as JSON lines, from frames on stdin (frames.go)
//	evaluator blocks -start MS -end MS -series N FOLDER    a synthetic history as TSDB blocks (blocks.go)
//
// No clock decides anything: a group is evaluated at the multiples of its interval, as soon as the feeder says that all
// samples up to that moment have been sent.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/prometheus/prometheus/rules"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) == 0 {
		return errors.New("usage: evaluator metrics|evaluate|blocks ...")
	}
	if args[0] == "blocks" {
		return writeBlocks(args[1:])
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	start := flags.Int64("start", 0, "first moment, ms since the epoch")
	end := flags.Int64("end", 0, "last moment, ms since the epoch")
	interval := flags.Duration("interval", 15*time.Second, "of groups that name none")
	lookback := flags.Duration("lookback", 5*time.Minute, "how long a sample counts")
	dump := flags.String("openmetrics", "", "write the recorded series, ALERTS and ALERTS_FOR_STATE there")
	recorded := flags.String("recorded", "", "write them there with their staleness markers, as frames")
	blocks := flags.String("blocks", "", "write them into this folder with their staleness markers, as TSDB blocks")
	var to kept
	flags.Int64Var(&to.shift, "shift", 0, "ms by which frames and blocks are later than the recording")
	flags.StringVar(&to.as, "as", "", "the label `replay` of frames and blocks, if not that of the recording")
	var within window
	flags.Int64Var(&within.start, "about-start", 0, "only what happens from then on is asked, ms since the epoch")
	flags.Int64Var(&within.end, "about-end", 0, "and until then; 0: the whole is")
	about := flags.String("about-places", "", "and about these places and jobs (JSON: names by node, switch, mount, job_id); others may be missing")
	near := flags.String("near", "", "say of these alert rules, parted by commas, how near they came meanwhile")
	externalURL := flags.String("external-url", "", "what templates call the external URL")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	var asks places
	if *about != "" {
		if err := json.Unmarshal([]byte(*about), &asks); err != nil {
			return err
		}
	}
	plan := func(groups []*rules.Group) (span, []asked, *wants, error) {
		beside, err := askedOf(groups, within, strings.Split(*near, ","))
		return spanOf(groups, window{*start, *end}, within, *lookback), beside, wantsOf(groups, asks, beside), err
	}
	switch args[0] {
	case "metrics":
		groups, err := load(nil, *interval, *externalURL, flags.Args())
		if err != nil {
			return err
		}
		evaluated, beside, wants, err := plan(groups)
		if err != nil {
			return err
		}
		return json.NewEncoder(out).Encode(readBy(groups, evaluated, *lookback, wants, beside))
	case "evaluate":
		e, err := newEvaluation(out, *start, *end, *lookback)
		if err != nil {
			return err
		}
		defer e.close()
		if e.groups, err = load(e.options(), *interval, *externalURL, flags.Args()); err != nil {
			return err
		}
		evaluated, beside, wants, err := plan(e.groups)
		if err != nil {
			return err
		}
		e.begin(evaluated, wants)
		if err := e.follow(context.Background(), bufio.NewReaderSize(os.Stdin, 1<<20)); err != nil {
			return err
		}
		if err := e.nearest(context.Background(), beside); err != nil {
			return err
		}
		if *recorded != "" {
			if err := to.write(e, *recorded); err != nil {
				return err
			}
		}
		if *blocks != "" {
			if err := to.blocks(e, *blocks); err != nil {
				return err
			}
		}
		if *dump != "" {
			return e.dump(*dump)
		}
		return nil
	}
	return fmt.Errorf("unknown command %q", args[0])
}
